// Frequencies that depend on the length, as operators of traceable calls.

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/scaling.h>
#include <torch/library.h>

namespace posenc {
namespace {

/// (B) → (B, 1, 1) in float64.
at::Tensor as_column(const char* op, const at::Tensor& lengths) {
  TORCH_CHECK_VALUE(lengths.dim() == 1, op, ": expected lengths of shape (B), got ",
                    lengths.sym_sizes());
  return lengths.to(at::kDouble).unsqueeze(-1).unsqueeze(-1);
}

}  // namespace

at::Tensor rope_lengths(const at::Tensor& x, const std::optional<at::Tensor>& position_ids,
                        c10::SymInt offset, int64_t seq_dim) {
  seq_dim = core::wrap_dim("rope_lengths", "seq_dim", seq_dim, x.dim());
  if (!position_ids.has_value()) {
    const c10::SymInt reached = x.sym_size(seq_dim) + offset;
    return at::full_symint({c10::SymInt(1)}, at::Scalar(reached), x.options().dtype(at::kLong))
        .to(at::kDouble);
  }
  core::check_position_ids("rope_lengths", position_ids, x, seq_dim, /*n_axes=*/1);
  at::Tensor last = position_ids->to(at::kDouble).amax({-1});
  while (last.dim() > 1) {
    last = last.amax({0});
  }
  return last.reshape({-1}).add(1).add(at::Scalar(offset));
}

at::Tensor dynamic_ntk_inv_freq(const at::Tensor& lengths, at::ArrayRef<double> inv_freq,
                                double factor, int64_t trained_length, std::optional<int64_t> dim) {
  const char* op = "dynamic_ntk_inv_freq";
  const auto n = static_cast<int64_t>(inv_freq.size());
  TORCH_CHECK_VALUE(n > 1, op, ": expected at least 2 frequencies, got ", n);
  TORCH_CHECK_VALUE(trained_length > 0 && factor >= 1, op,
                    ": expected trained_length > 0 and factor >= 1, got ", trained_length, " and ",
                    factor);
  const int64_t width = dim.value_or(2 * n);
  TORCH_CHECK_VALUE(width == 2 * n || width == 2 * n - 1, op, ": expected dim to be ", 2 * n,
                    " or ", 2 * n - 1, " for ", n, " frequencies, got ", width);
  // θ' = θ · stretch^(dim / (dim − 2)) makes f_i' = f_i · stretch^(−2i / (dim − 2)); below the
  // trained length stretch is 1.
  const at::Tensor reached = as_column(op, lengths).clamp_min(static_cast<double>(trained_length));
  const at::Tensor stretch =
      reached.mul(factor / static_cast<double>(trained_length)).sub(factor - 1);
  std::vector<double> exponent(n);
  for (int64_t i = 0; i < n; ++i) {
    exponent[i] = -static_cast<double>(2 * i) / static_cast<double>(width - 2);
  }
  const auto real = lengths.options().dtype(at::kDouble);
  return core::float_list_tensor(inv_freq, real) *
         at::pow(stretch, core::float_list_tensor(exponent, real));
}

at::Tensor longrope_inv_freq(const at::Tensor& lengths, at::ArrayRef<double> short_inv_freq,
                             at::ArrayRef<double> long_inv_freq, int64_t trained_length) {
  TORCH_CHECK_VALUE(short_inv_freq.size() == long_inv_freq.size(),
                    "longrope_inv_freq: expected two lists of one length, got ",
                    short_inv_freq.size(), " and ", long_inv_freq.size());
  const auto real = lengths.options().dtype(at::kDouble);
  return at::where(as_column("longrope_inv_freq", lengths).gt(trained_length),
                   core::float_list_tensor(long_inv_freq, real),
                   core::float_list_tensor(short_inv_freq, real));
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "rope_lengths(Tensor x, Tensor? position_ids=None, SymInt offset=0, int seq_dim=1) -> Tensor",
      rope_lengths, tags);
  m.def(
      "dynamic_ntk_inv_freq(Tensor lengths, float[] inv_freq, float factor, int trained_length, "
      "int? "
      "dim=None) -> Tensor",
      dynamic_ntk_inv_freq, tags);
  m.def(
      "longrope_inv_freq(Tensor lengths, float[] short_inv_freq, float[] long_inv_freq, int "
      "trained_length) -> Tensor",
      longrope_inv_freq, tags);
}

}  // namespace posenc
