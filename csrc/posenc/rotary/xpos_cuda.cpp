#include <ATen/ops/empty.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/rotary/xpos.h>
#include <posenc/rotary/xpos_launch.h>
#include <torch/library.h>

namespace posenc::rotary {
namespace {

at::Tensor xpos_pairs_cuda(const at::Tensor& positions, int64_t n, double scale_base, double centre,
                           double gamma, bool is_key, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(positions.device());
  const at::Tensor rows = positions.contiguous();
  at::Tensor pairs = at::empty({rows.size(0), rows.size(1), 2 * n}, rows.options());
  const XposDeviceParams params{rows.const_data_ptr<double>(),
                                pairs.mutable_data_ptr<double>(),
                                rows.numel(),
                                n,
                                scale_base,
                                centre,
                                gamma,
                                xpos_reach(dtype, scale_base, gamma),
                                is_key};
  core::check_launch("xpos_embedding", launch_xpos(params, core::current_stream()));
  return pairs;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) { m.impl("_xpos_pairs", xpos_pairs_cuda); }

}  // namespace posenc::rotary
