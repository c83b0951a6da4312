#pragma once

// Launches of rows_kernels.cu; the dtype is that of the output.

#include <cuda_runtime_api.h>
#include <posenc/absolute/rows_device.h>

namespace posenc::absolute {

/// What is added to what.
enum class RowsKernel {
  kEncoding,       ///< the sinusoidal encoding alone
  kAddSinusoidal,  ///< to a tensor
  kEmbedTokens,    ///< to rows of a table by token
  kAddPositions,   ///< rows of a table by position to a tensor
};

cudaError_t launch_rows(RowsKernel kernel, const RowsDeviceParams& params, core::Dtype dtype,
                        cudaStream_t stream);
cudaError_t launch_check_ids(const CheckIdsParams& params, cudaStream_t stream);

}  // namespace posenc::absolute
