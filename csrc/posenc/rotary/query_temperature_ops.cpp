// The temperature of queries as an operator of traceable calls.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/query_temperature.h>
#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/rotary_composite.h>
#include <torch/library.h>

#include <cmath>

namespace posenc {
namespace rotary {
namespace {

/// 1 + beta·ln(1 + ⌊(p + shift) / floor_scale⌋) for positions p in float64, on devices without a
/// kernel.
at::Tensor temperature_factor(const at::Tensor& positions, double beta, double floor_scale,
                              double shift) {
  return positions.add(shift).div(floor_scale).floor().clamp_min(0).log1p().mul(beta).add(1);
}

at::Tensor temperature_factor_meta(const at::Tensor& positions, double, double, double) {
  return at::empty_symint(positions.sym_sizes(), positions.options());
}

at::Tensor call_temperature_factor(const at::Tensor& positions, double beta, double floor_scale,
                                   double shift) {
  static const auto op = core::find_op<at::Tensor(const at::Tensor&, double, double, double)>(
      "posenc::_temperature_factor");
  return op.call(positions, beta, floor_scale, shift);
}

at::Tensor query_temperature_impl(const at::Tensor& q, double beta, double floor_scale,
                                  const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                                  int64_t seq_dim, double shift) {
  const char* op = "query_temperature";
  check_temperature(op, beta, floor_scale, shift);
  core::check_floating(op, "q", q);
  TORCH_CHECK_VALUE(q.dim() >= 2, op,
                    ": expected q of at least 2 axes (time and head_dim), got shape ",
                    q.sym_sizes());
  seq_dim = core::wrap_dim(op, "seq_dim", seq_dim, q.dim());
  TORCH_CHECK_VALUE(seq_dim != q.dim() - 1, op,
                    ": expected seq_dim to name the time axis of q, got ", seq_dim,
                    ", the last axis of shape ", q.sym_sizes(), ", which holds the channels");
  core::check_position_ids(op, position_ids, q, seq_dim);
  const at::Tensor positions =
      core::position_tensor(position_ids, offset, q.sym_size(seq_dim), q.options()).select(0, 0);
  const at::Tensor factor = call_temperature_factor(positions, beta, floor_scale, shift);
  const at::ScalarType compute = core::compute_dtype(q.scalar_type());
  const at::Tensor rows = align_rows(factor.unsqueeze(-1), q.dim(), seq_dim).to(compute);
  return (q.to(compute) * rows).to(q.scalar_type());
}

}  // namespace

void check_temperature(const char* where, double beta, double floor_scale, double shift) {
  TORCH_CHECK_VALUE(std::isfinite(beta), where, ": expected a finite beta, got ", beta);
  TORCH_CHECK_VALUE(std::isfinite(floor_scale) && floor_scale > 0, where,
                    ": expected a finite floor_scale > 0, got ", floor_scale);
  TORCH_CHECK_VALUE(std::isfinite(shift), where, ": expected a finite shift, got ", shift);
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "query_temperature(Tensor q, float beta, float floor_scale, Tensor? position_ids=None, "
      "SymInt offset=0, int seq_dim=1, float shift=0.) -> Tensor",
      query_temperature_impl, tags);
  m.def(
      "_temperature_factor(Tensor positions, float beta, float floor_scale, float shift) -> Tensor",
      tags);
}

// Under vmap the same calls, where torch would run them row by row.
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("query_temperature", query_temperature_impl);
}

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("_temperature_factor", temperature_factor);
}
TORCH_LIBRARY_IMPL(posenc, Meta, m) { m.impl("_temperature_factor", temperature_factor_meta); }
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("_temperature_factor", temperature_factor);
}
// Positions have no gradient.
TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("_temperature_factor", torch::CppFunction::makeFallthrough());
}

}  // namespace rotary

at::Tensor query_temperature(const at::Tensor& q, double beta, double floor_scale,
                             const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                             int64_t seq_dim, double shift) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, double, double, const std::optional<at::Tensor>&,
                               c10::SymInt, int64_t, double)>("posenc::query_temperature");
  return op.call(q, beta, floor_scale, position_ids, std::move(offset), seq_dim, shift);
}

std::vector<bool> nope_layers(int64_t n_layers, int64_t every) {
  TORCH_CHECK_VALUE(n_layers >= 0, "nope_layers: expected n_layers >= 0, got ", n_layers);
  TORCH_CHECK_VALUE(every >= 1, "nope_layers: expected every >= 1, got ", every);
  std::vector<bool> result(n_layers);
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    result[layer] = (layer + 1) % every == 0;
  }
  return result;
}

}  // namespace posenc
