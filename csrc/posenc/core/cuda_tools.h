#pragma once

// What the host side of a CUDA operator (*_cuda.cpp) needs of torch. The device guard and
// torch's current stream: no operator synchronises, and all memory comes from torch's allocator.

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <posenc/core/gpu_types.h>

namespace posenc::core {

/// The kernels' name of a dtype that check_floating let pass.
inline Dtype gpu_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Dtype::kDouble;
    case at::kFloat:
      return Dtype::kFloat;
    case at::kHalf:
      return Dtype::kHalf;
    default:
      return Dtype::kBFloat16;
  }
}

/// The stream that torch works on, on the device that is current: take a guard first.
inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

/// Raises what a launch returned, with the operator's name.
inline void check_launch(const char* op, cudaError_t error) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // the next operator does not find it
    TORCH_CHECK(false, op, ": expected the CUDA kernel to launch, got ", cudaGetErrorName(error),
                " (", cudaGetErrorString(error), ")");
  }
}

}  // namespace posenc::core
