#include <posenc/core/float_list_launch.h>
#include <posenc/core/gpu_launch.h>

namespace posenc::core {
namespace {

__global__ void __launch_bounds__(FloatListParams::kMost)
    float_list_kernel(const __grid_constant__ FloatListParams p) {
  float_list_body(CudaContext(), p);
}

}  // namespace

cudaError_t launch_float_list(const FloatListParams& p, cudaStream_t stream) {
  return launch(float_list_kernel, float_list_grid(p), p, stream);
}

}  // namespace posenc::core
