#pragma once

// Launching a kernel body; for *_kernels.cu files. No torch header.

#include <cuda_runtime_api.h>
#include <posenc/core/gpu_context.h>

namespace posenc::core {

/// Shared memory that any kernel may have without asking.
inline constexpr int64_t kPlainShared = 48 * 1024;

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
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(grid.shared_bytes));
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
