#include <ATen/ops/empty_like.h>
#include <posenc/rotary/query_temperature.h>
#include <posenc/rotary/query_temperature_math.h>
#include <torch/library.h>

namespace posenc::rotary {
namespace {

at::Tensor temperature_factor_cpu(const at::Tensor& positions, double beta, double floor_scale,
                                  double shift) {
  const at::Tensor rows = positions.contiguous();
  at::Tensor factor = at::empty_like(rows);
  const auto* position = rows.const_data_ptr<double>();
  auto* out = factor.mutable_data_ptr<double>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    // libm's logarithm: the same bits for a position wherever it stands, on any instruction set.
    out[i] = temperature_at(position[i], beta, floor_scale, shift);
  }
  return factor;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) { m.impl("_temperature_factor", temperature_factor_cpu); }

}  // namespace posenc::rotary
