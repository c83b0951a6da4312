#pragma once

#include <cuda_runtime_api.h>
#include <posenc/rotary/rotary_device_args.h>

namespace posenc::rotary {

/// Launches the rotation of planned parts (plan_rotation) in packs of `pack` channels.
cudaError_t launch_rotation(const RotaryDeviceParams& params, core::Dtype dtype, int pack,
                            cudaStream_t stream);

}  // namespace posenc::rotary
