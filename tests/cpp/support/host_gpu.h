#pragma once

// Runs the body of a CUDA kernel on the host, thread by thread over the kernel's own grid, and
// checks what it does:
//
//   HostGpu gpu;
//   gpu.readable(x, n, "x");
//   gpu.writable(y, n, "y");
//   gpu.run(scale_grid(params), [&](const HostContext& c) { scale_body<float>(c, params); });
//   gpu.expect_written_once(y, n);
//   EXPECT_EQ(gpu.report(), "");
//
// * Every load and store lies within a tensor that was registered, at an aligned address, and does
//   what that tensor allows; otherwise it is reported and not done.
// * No thread reads what another writes, or writes what another wrote or read, in one launch;
// within
//   a block a sync() between the two makes it good.
// * A barrier or a shuffle that some threads miss is reported, never a hang.
// * Shared memory begins as NaNs; run() with kBackwards lets the last thread go first, so that a
//   result that needs a missing barrier differs between the two orders. Asynchronous copies arrive
//   at once in one order and no sooner than they are waited for in the other.
// * A tensor may be virtual: addresses without memory, of any size, for offsets past 2^31.

#include <posenc/core/gpu_context.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace posenc::test {

class HostGpu;

/// The context of one thread; see core/gpu_context.h.
class HostContext {
 public:
  int block(int axis) const { return block_[axis]; }
  int blocks(int axis) const {
    return static_cast<int>(axis == 0 ? grid_->x : axis == 1 ? grid_->y : grid_->z);
  }
  int thread() const { return thread_; }
  int threads() const { return grid_->threads; }
  int lane() const { return thread_ % 32; }
  int warp() const { return thread_ / 32; }

  template <class V>
  V load(const V* p) const;
  template <class V>
  void store(V* p, const V& v) const;
  template <class T>
  T* shared(int64_t byte_offset) const;

  void copy_async(void* to, const void* from) const;
  void commit_copies() const;
  template <int kGroups>
  void wait_copies() const;

  void sync(std::source_location where = std::source_location::current()) const;
  void sync_warp(std::source_location where = std::source_location::current()) const;
  template <class T>
  T shuffle(T v, int lane, std::source_location where = std::source_location::current()) const {
    return gather(v, where)[lane & 31];
  }
  template <class T>
  T shuffle_xor(T v, int mask, std::source_location where = std::source_location::current()) const {
    return gather(v, where)[(lane() ^ mask) & 31];
  }
  void require(bool condition, const char* text) const;

  /// The values of all 32 lanes, valid until this lane's next warp operation: what instructions of
  /// a whole warp are emulated with.
  template <class T>
  const T* gather(const T& v, std::source_location where = std::source_location::current()) const;

 private:
  friend class HostGpu;
  HostGpu* gpu_ = nullptr;
  const core::GridShape* grid_ = nullptr;
  int block_[3] = {0, 0, 0};
  int thread_ = 0;
};

class HostGpu {
 public:
  enum Order { kForwards, kBackwards };

  HostGpu();
  ~HostGpu();

  /// `n` elements that a kernel may read.
  template <class T>
  void readable(const T* data, int64_t n, const char* name) {
    add_region(reinterpret_cast<uint64_t>(data), n, sizeof(T), name, /*writable=*/false, nullptr);
  }
  /// `n` elements that a kernel may read and write.
  template <class T>
  void writable(T* data, int64_t n, const char* name) {
    add_region(reinterpret_cast<uint64_t>(data), n, sizeof(T), name, /*writable=*/true, nullptr);
  }

  /// Addresses of `n` elements without memory. A read gives `value(index)`; writes are kept by
  /// index.
  template <class T>
  T* virtual_tensor(int64_t n, const char* name, std::function<T(int64_t)> value,
                    bool is_writable) {
    auto bytes = [value](int64_t index, void* out) {
      const T v = value(index);
      std::memcpy(out, &v, sizeof(T));
    };
    return reinterpret_cast<T*>(reserve(n, sizeof(T), name, is_writable, bytes));
  }

  /// What was written to a virtual tensor: index → value.
  template <class T>
  std::map<int64_t, T> written(const T* base) const {
    std::map<int64_t, T> result;
    for (const auto& [index, bytes] : written_bytes(reinterpret_cast<uint64_t>(base))) {
      std::memcpy(&result[index], bytes.data(), sizeof(T));
    }
    return result;
  }

  /// Runs every block of the grid, or the blocks with the given numbers (x fastest).
  template <class F>
  void run(const core::GridShape& grid, const F& body, Order order = kForwards) {
    run_blocks(
        grid, {}, [&](const HostContext& c) { body(c); }, order);
  }
  template <class F>
  void run(const core::GridShape& grid, std::vector<int64_t> blocks, const F& body,
           Order order = kForwards) {
    run_blocks(
        grid, std::move(blocks), [&](const HostContext& c) { body(c); }, order);
  }

  /// Reports elements of a registered tensor that the launches so far did not write exactly once.
  template <class T>
  void expect_written_once(const T* data, int64_t n) {
    expect_counts(reinterpret_cast<uint64_t>(data), n, [](int64_t) { return 1; });
  }
  /// The same where element `i` was to be written `times(i)` times.
  template <class T>
  void expect_written(const T* data, int64_t n, const std::function<int(int64_t)>& times) {
    expect_counts(reinterpret_cast<uint64_t>(data), n, times);
  }

  /// Loads and stores of packs of 16 bytes so far, and of everything.
  int64_t wide_accesses() const { return wide_; }
  int64_t accesses() const { return accesses_; }

  /// What was wrong, a line each; empty where nothing was. Clears it.
  std::string report();

 private:
  friend class HostContext;
  struct Region;
  struct Block;
  using ReadBytes = std::function<void(int64_t index, void* out)>;

  void add_region(uint64_t begin, int64_t n, size_t size, const char* name, bool is_writable,
                  ReadBytes value);
  uint64_t reserve(int64_t n, size_t size, const char* name, bool is_writable, ReadBytes value);
  std::map<int64_t, std::vector<char>> written_bytes(uint64_t base) const;
  void run_blocks(const core::GridShape& grid, std::vector<int64_t> blocks,
                  std::function<void(const HostContext&)> body, Order order);
  void run_block(Block& block, Order order);
  void expect_counts(uint64_t base, int64_t n, const std::function<int(int64_t)>& times);

  Region* find(uint64_t address, size_t bytes);
  void load_bytes(const HostContext& thread, uint64_t address, size_t bytes, void* out);
  void store_bytes(const HostContext& thread, uint64_t address, size_t bytes, const void* from);
  void fail(const HostContext* thread, const std::string& text);
  [[noreturn]] void stop(const HostContext& thread, const std::string& text);
  enum class Wait { kBlock, kWarp, kGather };
  void wait(const HostContext& thread, Wait kind, const std::source_location& where);
  char* shared_memory(const HostContext& thread, int64_t offset, size_t bytes);
  char* warp_slots(const HostContext& thread);
  void start_copy(const HostContext& thread, void* to, const void* from);
  void commit_copies(const HostContext& thread);
  void finish_copies(const HostContext& thread, size_t groups);

  static constexpr size_t kLaneBytes = 256;  // the largest value of a warp operation

  std::vector<std::unique_ptr<Region>> regions_;
  Region* last_ = nullptr;
  std::unique_ptr<Block> block_;
  std::vector<std::string> failures_;
  int64_t failed_ = 0, accesses_ = 0, wide_ = 0;
  uint32_t launch_ = 0;
};

template <class V>
V HostContext::load(const V* p) const {
  V v{};
  gpu_->load_bytes(*this, reinterpret_cast<uint64_t>(p), sizeof(V), &v);
  return v;
}

template <class V>
void HostContext::store(V* p, const V& v) const {
  gpu_->store_bytes(*this, reinterpret_cast<uint64_t>(p), sizeof(V), &v);
}

template <class T>
T* HostContext::shared(int64_t byte_offset) const {
  return reinterpret_cast<T*>(gpu_->shared_memory(*this, byte_offset, sizeof(T)));
}

template <int kGroups>
void HostContext::wait_copies() const {
  gpu_->finish_copies(*this, kGroups);
}

template <class T>
const T* HostContext::gather(const T& v, std::source_location where) const {
  static_assert(sizeof(T) <= HostGpu::kLaneBytes && std::is_trivially_copyable_v<T>);
  // Two turns of slots: who comes first to the next operation does not overwrite what others have
  // yet to read.
  char* slots = gpu_->warp_slots(*this);
  std::memcpy(slots + lane() * sizeof(T), &v, sizeof(T));
  gpu_->wait(*this, HostGpu::Wait::kGather, where);
  return reinterpret_cast<const T*>(slots);
}

}  // namespace posenc::test
