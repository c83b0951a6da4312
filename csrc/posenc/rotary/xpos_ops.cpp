// xPos as calls of the rotary operators, so that derivatives, transforms and tracing come from
// them.

#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/xpos.h>
#include <posenc/rotary/xpos_scale.h>
#include <torch/library.h>

#include <cmath>

namespace posenc {
namespace rotary {

std::string xpos_too_far(double centre, double reach, at::ScalarType dtype,
                         const std::string& got) {
  return c10::str("xpos_embedding: expected positions within ", std::floor(reach),
                  " of the centre ", centre, ", beyond which the scale leaves the range of ", dtype,
                  ", got ", got,
                  "; choose a larger scale_base or another centre (the same for all q and k)",
                  dtype == at::kHalf ? ", or bfloat16" : "");
}

std::string xpos_too_far(double centre, double reach, at::ScalarType dtype, double position) {
  const bool whole = std::abs(position) < 0x1p53 && position == std::floor(position);
  return xpos_too_far(centre, reach, dtype,
                      whole ? c10::str(static_cast<int64_t>(position)) : c10::str(position));
}

namespace {

/// The power of two that the scale may reach: a normal number of the dtype, with room for the
/// values that it multiplies.
double exponent_room(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1000;
    case at::kHalf:
      return 8;
    default:
      return 110;
  }
}

/// (B, L) → (B, L, 2n): the scale of each pair, then n zeros: pairs of halves that point along
/// their first axis. An operator of its own, so that compiled and exported programs look at the
/// positions as well. This is its form for devices without a kernel.
at::Tensor xpos_pairs(const at::Tensor& positions, int64_t n, double scale_base, double centre,
                      double gamma, bool is_key, at::ScalarType dtype) {
  const double reach = xpos_reach(dtype, scale_base, gamma);
  const at::Tensor distance = positions.sub(centre);
  // Nothing is read back from the device: its own assertion stops the program.
  at::_assert_async(distance.abs().le(reach).all(), xpos_too_far(centre, reach, dtype, "others"));
  const at::Tensor rate =
      xpos_zeta(at::arange(n, positions.options()), static_cast<double>(2 * n), gamma)
          .log()
          .div(is_key ? -scale_base : scale_base);
  const at::Tensor scale = (distance.unsqueeze(-1) * rate).exp();
  return at::cat({scale, at::zeros_like(scale)}, -1);
}

at::Tensor xpos_pairs_meta(const at::Tensor& positions, int64_t n, double, double, double, bool,
                           at::ScalarType) {
  return at::empty_symint({positions.sym_size(0), positions.sym_size(1), c10::SymInt(2 * n)},
                          positions.options());
}

at::Tensor call_xpos_pairs(const at::Tensor& positions, int64_t n, double scale_base, double centre,
                           double gamma, bool is_key, at::ScalarType dtype) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, int64_t, double, double, double, bool,
                               at::ScalarType)>("posenc::_xpos_pairs");
  return op.call(positions, n, scale_base, centre, gamma, is_key, dtype);
}

/// The check where the positions are plain numbers: before anything runs, on any device.
void check_range(int64_t first, int64_t length, double centre, double reach, at::ScalarType dtype) {
  for (const int64_t end : {first, first + length - 1}) {
    if (length > 0 && !(std::abs(static_cast<double>(end) - centre) <= reach)) {
      TORCH_CHECK_VALUE(false, xpos_too_far(centre, reach, dtype, static_cast<double>(end)));
    }
  }
}

at::Tensor xpos_embedding_impl(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                               const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                               int64_t seq_dim, bool interleaved, int64_t rotary_start,
                               double scale_base, double centre, double gamma, bool is_key) {
  const char* op = "xpos_embedding";
  check_xpos(op, scale_base, centre, gamma);
  RotaryArgs args = make_args(position_ids, offset, seq_dim, interleaved, std::nullopt,
                              rotary_start, 1.0, std::nullopt, false);
  const auto n = static_cast<int64_t>(inv_freq.size());
  check_rotary(op, x, n, args);
  const at::ScalarType dtype = x.scalar_type();
  const c10::SymInt length = x.sym_size(args.seq_dim);
  if (!position_ids.has_value() && !offset.is_symbolic() && !length.is_symbolic()) {
    check_range(offset.expect_int(), length.expect_int(), centre,
                xpos_reach(dtype, scale_base, gamma), dtype);
  }
  const at::Tensor positions =
      core::position_tensor(position_ids, offset, length, x.options()).select(0, 0);
  const at::Tensor pairs = call_xpos_pairs(positions, n, scale_base, centre, gamma, is_key, dtype);
  // Rotating (A, 0) gives (A·cos, A·sin): the angle has its one formula, in the operator.
  const at::Tensor turned = rotary_embedding(pairs, inv_freq, position_ids, offset, /*seq_dim=*/1,
                                             /*interleaved=*/false);
  return apply_rotary(x, turned.narrow(-1, 0, n), turned.narrow(-1, n, n), std::nullopt,
                      args.seq_dim, interleaved, std::nullopt, rotary_start);
}

}  // namespace

void check_xpos(const char* where, double scale_base, double centre, double gamma) {
  TORCH_CHECK_VALUE(std::isfinite(scale_base) && scale_base > 0, where,
                    ": expected a finite scale_base > 0, got ", scale_base);
  TORCH_CHECK_VALUE(std::isfinite(centre), where, ": expected a finite centre, got ", centre);
  TORCH_CHECK_VALUE(std::isfinite(gamma) && gamma > 0, where, ": expected a finite gamma > 0, got ",
                    gamma);
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "xpos_embedding(Tensor x, float[] inv_freq, Tensor? position_ids=None, SymInt offset=0, int "
      "seq_dim=1, bool interleaved=True, int rotary_start=0, float scale_base=512., float "
      "centre=0., float gamma=0.4, bool is_key=False) -> Tensor",
      xpos_embedding_impl, tags);
  m.def(
      "_xpos_pairs(Tensor positions, int n, float scale_base, float centre, float gamma, bool "
      "is_key, ScalarType dtype) -> Tensor",
      tags);
}

// Under vmap the same calls, where torch would run them row by row. (_xpos_pairs, which looks at
// data, is run row by row where the positions are batched.)
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) { m.impl("xpos_embedding", xpos_embedding_impl); }

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) { m.impl("_xpos_pairs", xpos_pairs); }
TORCH_LIBRARY_IMPL(posenc, Meta, m) { m.impl("_xpos_pairs", xpos_pairs_meta); }
// Positions have no gradient, as in the rotation itself.
TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("_xpos_pairs", torch::CppFunction::makeFallthrough());
}

}  // namespace rotary

double xpos_reach(at::ScalarType dtype, double scale_base, double gamma) {
  rotary::check_xpos("xpos_reach", scale_base, 0.0, gamma);
  const double fastest = std::log(rotary::xpos_zeta(0.0, 1.0, gamma));  // the width cancels
  return rotary::exponent_room(dtype) * std::log(2.0) * scale_base / -fastest;
}

at::Tensor xpos_embedding(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                          const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                          int64_t seq_dim, bool interleaved, int64_t rotary_start,
                          double scale_base, double centre, double gamma, bool is_key) {
  static const auto op = core::find_op<at::Tensor(
      const at::Tensor&, at::ArrayRef<double>, const std::optional<at::Tensor>&, c10::SymInt,
      int64_t, bool, int64_t, double, double, double, bool)>("posenc::xpos_embedding");
  return op.call(x, inv_freq, position_ids, std::move(offset), seq_dim, interleaved, rotary_start,
                 scale_base, centre, gamma, is_key);
}

}  // namespace posenc
