#pragma once

#include <cuda_runtime_api.h>
#include <posenc/rotary/query_temperature_device.h>

namespace posenc::rotary {

cudaError_t launch_temperature(const TemperatureDeviceParams& params, cudaStream_t stream);

}  // namespace posenc::rotary
