#include <posenc/core/gpu_launch.h>
#include <posenc/rotary/query_temperature_launch.h>

namespace posenc::rotary {
namespace {

__global__ void __launch_bounds__(256)
    temperature_kernel(const __grid_constant__ TemperatureDeviceParams p) {
  temperature_body(core::CudaContext(), p);
}

}  // namespace

cudaError_t launch_temperature(const TemperatureDeviceParams& p, cudaStream_t stream) {
  return core::launch(temperature_kernel, temperature_grid(p), p, stream);
}

}  // namespace posenc::rotary
