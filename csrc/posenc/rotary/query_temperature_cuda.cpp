#include <ATen/ops/empty_like.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/rotary/query_temperature_launch.h>
#include <torch/library.h>

namespace posenc::rotary {
namespace {

at::Tensor temperature_factor_cuda(const at::Tensor& positions, double beta, double floor_scale,
                                   double shift) {
  const c10::cuda::CUDAGuard guard(positions.device());
  const at::Tensor rows = positions.contiguous();
  at::Tensor factor = at::empty_like(rows);
  const TemperatureDeviceParams params{rows.const_data_ptr<double>(),
                                       factor.mutable_data_ptr<double>(),
                                       rows.numel(),
                                       beta,
                                       floor_scale,
                                       shift};
  core::check_launch("query_temperature", launch_temperature(params, core::current_stream()));
  return factor;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) { m.impl("_temperature_factor", temperature_factor_cuda); }

}  // namespace posenc::rotary
