#pragma once

#include <cuda_runtime_api.h>
#include <posenc/core/float_list_device.h>

namespace posenc::core {

cudaError_t launch_float_list(const FloatListParams& params, cudaStream_t stream);

}  // namespace posenc::core
