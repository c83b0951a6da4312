#pragma once

// Launching a kernel body; for *_kernels.cu files. No torch header.

#include <cuda_runtime_api.h>
#include <posenc/core/gpu_context.h>

namespace posenc::core {

/// Shared memory that any kernel may have without asking.
inline constexpr int64_t kPlainShared = 48 * 1024;

/// Lets a kernel have all the shared memory of a block that the device has: the limit is one for
/// all threads of the host that launch the kernel, so it must not follow what one of them needs.
inline cudaError_t allow_shared(const void* kernel, int64_t bytes) {
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess && bytes > most) {
    error = cudaErrorInvalidValue;
  }
  return error != cudaSuccess
             ? error
             : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

/// Launches `kernel(params)` and returns what this launch reported. A grid without blocks is no
/// launch, and no error.
template <class Params>
cudaError_t launch(void (*kernel)(Params), const GridShape& grid, const Params& params,
                   cudaStream_t stream) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return cudaSuccess;
  }
  if (grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    return cudaErrorInvalidConfiguration;
  }
  if (grid.shared_bytes > kPlainShared) {
    const cudaError_t error =
        allow_shared(reinterpret_cast<const void*>(kernel), grid.shared_bytes);
    if (error != cudaSuccess) {
      return error;
    }
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  void* arguments[] = {const_cast<Params*>(&params)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks,
                          dim3(static_cast<unsigned>(grid.threads)), arguments,
                          static_cast<size_t>(grid.shared_bytes), stream);
}

}  // namespace posenc::core
