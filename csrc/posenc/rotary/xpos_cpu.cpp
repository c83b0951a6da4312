#include <ATen/ops/empty.h>
#include <posenc/core/parallel.h>
#include <posenc/rotary/xpos.h>
#include <posenc/rotary/xpos_scale.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace posenc::rotary {
namespace {

at::Tensor xpos_pairs_cpu(const at::Tensor& positions, int64_t n, double scale_base, double centre,
                          double gamma, bool is_key, at::ScalarType dtype) {
  const double reach = xpos_reach(dtype, scale_base, gamma);
  const at::Tensor rows = positions.contiguous();
  const auto* position = rows.const_data_ptr<double>();
  for (int64_t row = 0; row < rows.numel(); ++row) {
    if (!(std::abs(position[row] - centre) <= reach)) {  // a NaN too
      TORCH_CHECK_VALUE(false, xpos_too_far(centre, reach, dtype, position[row]));
    }
  }
  std::vector<double> rate(n);
  for (int64_t i = 0; i < n; ++i) {
    rate[i] =
        xpos_rate(static_cast<double>(i), static_cast<double>(2 * n), gamma, scale_base, is_key);
  }
  at::Tensor pairs = at::empty({rows.size(0), rows.size(1), 2 * n}, rows.options());
  auto* out = pairs.mutable_data_ptr<double>();
  constexpr int64_t kExp = 16;  // elements' worth of work in one exponential
  core::parallel_tasks(rows.numel(), n * kExp, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      // libm's exp: the same bits for a position wherever it stands, on any instruction set.
      const double distance = position[row] - centre;
      double* scale = out + row * 2 * n;
      for (int64_t i = 0; i < n; ++i) {
        scale[i] = std::exp(distance * rate[i]);
      }
      std::fill_n(scale + n, n, 0.0);
    }
  });
  return pairs;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) { m.impl("_xpos_pairs", xpos_pairs_cpu); }

}  // namespace posenc::rotary
