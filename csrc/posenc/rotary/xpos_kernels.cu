#include <posenc/core/gpu_launch.h>
#include <posenc/rotary/xpos_launch.h>

namespace posenc::rotary {
namespace {

__global__ void __launch_bounds__(256) xpos_kernel(const __grid_constant__ XposDeviceParams p) {
  xpos_body(core::CudaContext(), p);
}

}  // namespace

cudaError_t launch_xpos(const XposDeviceParams& p, cudaStream_t stream) {
  return core::launch(xpos_kernel, xpos_grid(p), p, stream);
}

}  // namespace posenc::rotary
