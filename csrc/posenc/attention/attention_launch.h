#pragma once

// What alibi_attention_cuda.cpp calls of alibi_attention_kernels.cu.

#include <cuda_runtime_api.h>
#include <posenc/attention/attention_device.h>

namespace posenc::attention::device {

/// Fills norm, left_max, right_max, k_first, k_last where p has places for them. `given`: norms by
/// the caller, on the device, in place of a pass over the keys.
cudaError_t launch_keys(const Params& p, const double* given, cudaStream_t stream);

/// After launch_keys and plan_forward.
cudaError_t launch_forward(const Params& p, cudaStream_t stream);
/// After launch_keys and plan_backward: rows, dk and dv, dq and slopes.
cudaError_t launch_backward(const Params& p, cudaStream_t stream);

}  // namespace posenc::attention::device
