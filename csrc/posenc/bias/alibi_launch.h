#pragma once

// Launches of alibi_kernels.cu; the dtype is that of the output.

#include <cuda_runtime_api.h>
#include <posenc/bias/alibi_softmax_device.h>

namespace posenc::bias {

cudaError_t launch_alibi_bias(const AlibiBiasDeviceParams& params, core::Dtype dtype,
                              cudaStream_t stream);
cudaError_t launch_alibi_softmax(const AlibiSoftmaxDeviceParams& params, core::Dtype dtype,
                                 cudaStream_t stream);
cudaError_t launch_alibi_softmax_backward(const AlibiSoftmaxDeviceParams& params, core::Dtype dtype,
                                          cudaStream_t stream);

}  // namespace posenc::bias
