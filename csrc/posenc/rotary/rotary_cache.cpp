// What a cache does to keys that were rotated: compositions of rotary_embedding.

#include <ATen/TensorOperators.h>
#include <posenc/core/checks.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/rotary_cache.h>
#include <torch/library.h>

#include <cmath>

namespace posenc {
namespace {

/// new / old, and the checks that do not need the frequencies' form.
double checked_factor(const char* op, const at::Tensor& keys, int64_t n, rotary::RotaryArgs args,
                      double old_factor, double new_factor) {
  TORCH_CHECK_VALUE(std::isfinite(old_factor) && old_factor != 0, op,
                    ": expected a finite old_attention_factor other than 0, got ", old_factor);
  TORCH_CHECK_VALUE(std::isfinite(new_factor), op, ": expected a finite new_attention_factor, got ",
                    new_factor);
  rotary::check_rotary(op, keys, n, args, "keys");
  return new_factor / old_factor;
}

/// delta as positions, (1, L) or (B, L), for keys that fit n frequencies.
at::Tensor delta_positions(const char* op, const at::Tensor& keys, const at::Tensor& delta,
                           int64_t n, int64_t seq_dim, int64_t rotary_start) {
  rotary::RotaryArgs args;
  args.seq_dim = seq_dim;
  args.rotary_start = rotary_start;
  rotary::check_rotary(op, keys, n, args, "keys");
  const int64_t time = args.seq_dim;
  const int64_t batch_axis = core::batch_dim(time, keys.dim());
  const c10::SymInt length = keys.sym_size(time);
  const c10::SymInt batch = batch_axis < 0 ? c10::SymInt(1) : keys.sym_size(batch_axis);
  TORCH_CHECK_TYPE(delta.scalar_type() != at::kBool && !c10::isComplexType(delta.scalar_type()) &&
                       delta.scalar_type() != at::kHalf && delta.scalar_type() != at::kBFloat16,
                   op, ": expected delta of an integer dtype, float32 or float64, got ",
                   delta.scalar_type());
  const at::Tensor rows = delta.dim() == 2 ? delta : delta.reshape({-1, 1});
  const auto fits = [](const c10::SymInt& size, const c10::SymInt& whole) {
    return size == 1 || size == whole;
  };
  TORCH_CHECK_VALUE(
      delta.dim() <= 2 && fits(rows.sym_size(0), batch) && fits(rows.sym_size(1), length), op,
      ": expected delta as one number, (", batch, ") or (", batch, ", ", length,
      ") for keys of shape ", keys.sym_sizes(), " with time on axis ", time, ", got ",
      delta.sym_sizes());
  return rows.expand_symint({rows.sym_size(0), length});
}

}  // namespace

at::Tensor re_rotate(const at::Tensor& keys, at::ArrayRef<double> old_inv_freq,
                     at::ArrayRef<double> new_inv_freq,
                     const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                     int64_t seq_dim, bool interleaved, int64_t rotary_start,
                     double old_attention_factor, double new_attention_factor,
                     at::OptionalIntArrayRef axes, bool inverse) {
  const char* op = "re_rotate";
  TORCH_CHECK_VALUE(old_inv_freq.size() == new_inv_freq.size(), op,
                    ": expected as many new as old frequencies, got ", new_inv_freq.size(), " and ",
                    old_inv_freq.size());
  const double factor =
      checked_factor(op, keys, old_inv_freq.size(),
                     rotary::make_args(position_ids, offset, seq_dim, interleaved, std::nullopt,
                                       rotary_start, 1.0, axes, false),
                     old_attention_factor, new_attention_factor);
  std::vector<double> change(old_inv_freq.size());
  for (size_t i = 0; i < change.size(); ++i) {
    change[i] = new_inv_freq[i] - old_inv_freq[i];
  }
  return rotary_embedding(keys, change, position_ids, std::move(offset), seq_dim, interleaved,
                          std::nullopt, rotary_start, factor, axes, inverse);
}

at::Tensor re_rotate(const at::Tensor& keys, const at::Tensor& old_inv_freq,
                     const at::Tensor& new_inv_freq, const std::optional<at::Tensor>& position_ids,
                     c10::SymInt offset, int64_t seq_dim, bool interleaved, int64_t rotary_start,
                     double old_attention_factor, double new_attention_factor,
                     at::OptionalIntArrayRef axes, bool inverse) {
  const char* op = "re_rotate.Tensor";
  TORCH_CHECK_VALUE(old_inv_freq.dim() >= 1 && new_inv_freq.dim() >= 1 &&
                        old_inv_freq.sym_size(-1) == new_inv_freq.sym_size(-1),
                    op, ": expected as many new as old frequencies, got shapes ",
                    new_inv_freq.sym_sizes(), " and ", old_inv_freq.sym_sizes());
  rotary::RotaryArgs args = rotary::make_args(position_ids, offset, seq_dim, interleaved,
                                              std::nullopt, rotary_start, 1.0, axes, false);
  const double factor = checked_factor(op, keys, old_inv_freq.size(-1), args, old_attention_factor,
                                       new_attention_factor);
  args.seq_dim = core::wrap_dim(op, "seq_dim", seq_dim, keys.dim());
  rotary::check_freq_tensor(op, keys, old_inv_freq, args);
  rotary::check_freq_tensor(op, keys, new_inv_freq, args);
  return rotary_embedding(keys, new_inv_freq - old_inv_freq, position_ids, std::move(offset),
                          seq_dim, interleaved, std::nullopt, rotary_start, factor, axes, inverse);
}

at::Tensor shift(const at::Tensor& keys, const at::Tensor& delta, at::ArrayRef<double> inv_freq,
                 int64_t seq_dim, bool interleaved, int64_t rotary_start, bool inverse) {
  const at::Tensor positions =
      delta_positions("shift", keys, delta, inv_freq.size(), seq_dim, rotary_start);
  return rotary_embedding(keys, inv_freq, positions, 0, seq_dim, interleaved, std::nullopt,
                          rotary_start, 1.0, std::nullopt, inverse);
}

at::Tensor shift(const at::Tensor& keys, const at::Tensor& delta, const at::Tensor& inv_freq,
                 int64_t seq_dim, bool interleaved, int64_t rotary_start, bool inverse) {
  TORCH_CHECK_VALUE(inv_freq.dim() >= 1,
                    "shift.Tensor: expected inv_freq of shape (n), (B, 1, n) or (1, H, n), got a "
                    "scalar");
  const at::Tensor positions =
      delta_positions("shift.Tensor", keys, delta, inv_freq.size(-1), seq_dim, rotary_start);
  return rotary_embedding(keys, inv_freq, positions, 0, seq_dim, interleaved, std::nullopt,
                          rotary_start, 1.0, std::nullopt, inverse);
}

namespace {

using List = at::ArrayRef<double>;
using Ids = const std::optional<at::Tensor>&;
constexpr at::Tensor (*kReRotate)(const at::Tensor&, List, List, Ids, c10::SymInt, int64_t, bool,
                                  int64_t, double, double, at::OptionalIntArrayRef,
                                  bool) = re_rotate;
constexpr at::Tensor (*kReRotateTensor)(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        Ids, c10::SymInt, int64_t, bool, int64_t, double, double,
                                        at::OptionalIntArrayRef, bool) = re_rotate;
constexpr at::Tensor (*kShift)(const at::Tensor&, const at::Tensor&, List, int64_t, bool, int64_t,
                               bool) = shift;
constexpr at::Tensor (*kShiftTensor)(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                     int64_t, bool, int64_t, bool) = shift;

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string rest =
      "Tensor? position_ids=None, SymInt offset=0, int seq_dim=1, bool interleaved=True, "
      "int rotary_start=0, float old_attention_factor=1., float new_attention_factor=1., "
      "int[]? axes=None, bool inverse=False) -> Tensor";
  m.def(("re_rotate(Tensor keys, float[] old_inv_freq, float[] new_inv_freq, " + rest).c_str(),
        kReRotate, tags);
  m.def(("re_rotate.Tensor(Tensor keys, Tensor old_inv_freq, Tensor new_inv_freq, " + rest).c_str(),
        kReRotateTensor, tags);
  const std::string layout =
      "int seq_dim=1, bool interleaved=True, int rotary_start=0, bool inverse=False) -> Tensor";
  m.def(("shift(Tensor keys, Tensor delta, float[] inv_freq, " + layout).c_str(), kShift, tags);
  m.def(("shift.Tensor(Tensor keys, Tensor delta, Tensor inv_freq, " + layout).c_str(),
        kShiftTensor, tags);
}

// Not found through the composite registration by vmap, which would fall back to a loop.
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("re_rotate", kReRotate);
  m.impl("re_rotate.Tensor", kReRotateTensor);
  m.impl("shift", kShift);
  m.impl("shift.Tensor", kShiftTensor);
}

}  // namespace posenc
