#pragma once

// What the body of a CUDA kernel sees of the GPU. A body is a template over its context, so that
// the same lines run on the device (CudaContext) and, thread by thread over the same grid, on the
// host (tests/cpp/support/host_gpu.h), which checks every access:
//
//   template <class T, class Ctx>
//   POSENC_HD void scale_body(const Ctx& gpu, const ScaleParams& p) {
//     const int64_t i = gpu.block(0) * int64_t{gpu.threads()} + gpu.thread();
//     if (i < p.n) {
//       gpu.store(p.y + i, p.factor * gpu.load(p.x + i));
//     }
//   }
//
// A context has
//   block(axis), blocks(axis)      index in the grid and the grid's size; axis 0 … 2
//   thread(), threads()            within the block, which has one axis and whole warps
//   lane(), warp()                 thread() % 32, thread() / 32
//   load(p), store(p, v)           global memory: a number or a Pack, aligned to its size
//   shared<T>(byte_offset)         the block's dynamic shared memory, 16-byte aligned at offset 0
//   copy_async(to, from)           16 bytes from global to shared memory, there after a wait
//   commit_copies()                makes a group of the thread's copies since the last one
//   wait_copies<n>()               all but the thread's last n groups are there; for other threads,
//                                  after a sync()
//   sync()                         every thread of the block arrives here
//   sync_warp()                    every lane of the warp arrives here
//   shuffle(v, lane), shuffle_xor(v, mask)   all 32 lanes take part
//   require(condition, text)       stops the kernel with the text where the condition is false
// and nothing else reaches memory that threads share.

#include <posenc/core/gpu_types.h>
#include <posenc/core/macros.h>

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
// What assert() calls on the device, which <cassert> hides where NDEBUG is set.
extern "C" __host__ __device__ void __assert_fail(const char*, const char*, unsigned int,
                                                  const char*) noexcept
    __attribute__((__noreturn__));
#endif

namespace posenc::core {

/// A launch: blocks, threads of a block (a multiple of 32), bytes of dynamic shared memory.
struct GridShape {
  int64_t x = 1, y = 1, z = 1;
  int threads = 256;
  int64_t shared_bytes = 0;
};

/// The most blocks that CUDA takes along x, and along y or z.
inline constexpr int64_t kMaxGridX = 2147483647, kMaxGridYZ = 65535;

POSENC_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#if defined(__CUDACC__)

/// The device itself.
class CudaContext {
 public:
  __device__ int block(int axis) const {
    return static_cast<int>(axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z);
  }
  __device__ int blocks(int axis) const {
    return static_cast<int>(axis == 0 ? gridDim.x : axis == 1 ? gridDim.y : gridDim.z);
  }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ int lane() const { return static_cast<int>(threadIdx.x & 31u); }
  __device__ int warp() const { return static_cast<int>(threadIdx.x >> 5); }

  // A pack is one instruction: it travels as the integer vector of its size.
  template <class V>
  __device__ V load(const V* p) const {
    static_assert(sizeof(V) <= 16);
    if constexpr (sizeof(V) == 16) {
      return from_words<V>(*reinterpret_cast<const uint4*>(p));
    } else if constexpr (sizeof(V) == 8) {
      return from_words<V>(*reinterpret_cast<const uint2*>(p));
    } else if constexpr (sizeof(V) == 4) {
      return from_words<V>(*reinterpret_cast<const uint32_t*>(p));
    } else {
      return *p;
    }
  }
  template <class V>
  __device__ void store(V* p, const V& v) const {
    static_assert(sizeof(V) <= 16);
    if constexpr (sizeof(V) == 16) {
      *reinterpret_cast<uint4*>(p) = from_words<uint4>(v);
    } else if constexpr (sizeof(V) == 8) {
      *reinterpret_cast<uint2*>(p) = from_words<uint2>(v);
    } else if constexpr (sizeof(V) == 4) {
      *reinterpret_cast<uint32_t*>(p) = from_words<uint32_t>(v);
    } else {
      *p = v;
    }
  }

  template <class T>
  __device__ T* shared(int64_t byte_offset) const {
    extern __shared__ __align__(16) unsigned char posenc_shared[];
    return reinterpret_cast<T*>(posenc_shared + byte_offset);
  }
  // Before compute capability 8.0 a copy is a load and a store, and there at once.
  __device__ void copy_async(void* to, const void* from) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
#else
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
  }
  __device__ void commit_copies() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  template <int kGroups>
  __device__ void wait_copies() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
  }
  __device__ void sync() const { __syncthreads(); }
  __device__ void sync_warp() const { __syncwarp(); }
  template <class T>
  __device__ T shuffle(T v, int lane) const {
    return __shfl_sync(0xFFFFFFFFu, v, lane);
  }
  template <class T>
  __device__ T shuffle_xor(T v, int mask) const {
    return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
  }
  __device__ void require(bool condition, const char* text) const {
    if (!condition) {
      __assert_fail(text, "posenc", 0, "kernel");
    }
  }

 private:
  template <class To, class From>
  __device__ static To from_words(From from) {
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
  }
};

#endif

}  // namespace posenc::core
