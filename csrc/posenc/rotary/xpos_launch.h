#pragma once

#include <cuda_runtime_api.h>
#include <posenc/rotary/xpos_device.h>

namespace posenc::rotary {

cudaError_t launch_xpos(const XposDeviceParams& params, cudaStream_t stream);

}  // namespace posenc::rotary
