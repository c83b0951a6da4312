#include <posenc/core/gpu_launch.h>
#include <posenc/rotary/rotary_device.h>
#include <posenc/rotary/rotary_launch.h>

namespace posenc::rotary {
namespace {

// Registers for four heads' packs: two channels of a pair that have cos and sin of their own need
// more of them.
template <class T, int V, bool kTables>
__global__ void __launch_bounds__(128, kTables ? 3 : 4)
    rotary_kernel(const __grid_constant__ RotaryDeviceParams p) {
  rotate_body<T, V, kTables>(core::CudaContext(), p);
}

template <class T, int V>
cudaError_t launch_packs(const RotaryDeviceParams& p, cudaStream_t stream) {
  return core::launch(p.tables.cos ? rotary_kernel<T, V, true> : rotary_kernel<T, V, false>,
                      rotary_grid(p), p, stream);
}

template <class T>
cudaError_t launch_of_dtype(const RotaryDeviceParams& p, int pack, cudaStream_t stream) {
  if (pack == core::kFullPack<T>) {
    return launch_packs<T, core::kFullPack<T>>(p, stream);
  }
  if constexpr (sizeof(T) == 2) {
    if (pack == 4) {
      return launch_packs<T, 4>(p, stream);
    }
  }
  return launch_packs<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_rotation(const RotaryDeviceParams& p, core::Dtype dtype, int pack,
                            cudaStream_t stream) {
  switch (dtype) {
    case core::Dtype::kDouble:
      return launch_of_dtype<double>(p, pack, stream);
    case core::Dtype::kFloat:
      return launch_of_dtype<float>(p, pack, stream);
    case core::Dtype::kHalf:
      return launch_of_dtype<core::Half>(p, pack, stream);
    default:
      return launch_of_dtype<core::BFloat16>(p, pack, stream);
  }
}

}  // namespace posenc::rotary
