// Trained frequencies as an operator of traceable calls.

#include <ATen/TensorOperators.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/rotary/learned_rotary.h>
#include <torch/library.h>

#include <numbers>

namespace posenc {
namespace {

at::Tensor learned_inv_freq_impl(const at::Tensor& weight, at::ArrayRef<double> inv_freq,
                                 c10::string_view parametrisation) {
  const char* op = "learned_inv_freq";
  const bool direct = parametrisation == "direct";
  TORCH_CHECK_VALUE(direct || parametrisation == "log", op,
                    ": expected parametrisation \"log\" or \"direct\", got \"", parametrisation,
                    "\"");
  core::check_floating(op, "weight", weight);
  const auto n = static_cast<int64_t>(inv_freq.size());
  TORCH_CHECK_VALUE((weight.dim() == 1 || weight.dim() == 2) && weight.sym_size(-1) == n, op,
                    ": expected weight of shape (", n, ") or (H, ", n, "), got ",
                    weight.sym_sizes());
  TORCH_CHECK_TYPE(
      !direct || weight.scalar_type() == at::kDouble || weight.scalar_type() == at::kFloat, op,
      ": expected frequencies of dtype float64 or float32 (in ", weight.scalar_type(),
      " an angle is off by one radian after some 256), got ", weight.scalar_type());
  const at::Tensor wide = weight.to(at::kDouble);
  // As a power of two: exactly f at alpha = 0. (ATen's exp of float64 is MKL's, which was seen to
  // be off by 1e-9.)
  const at::Tensor learned = direct ? wide
                                    : core::float_list_tensor(inv_freq, wide.options()) *
                                          wide.mul(std::numbers::log2e).exp2();
  return weight.dim() == 2 ? learned.unsqueeze(0) : learned;
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  m.def("learned_inv_freq(Tensor weight, float[] inv_freq, str parametrisation=\"log\") -> Tensor",
        learned_inv_freq_impl, {at::Tag::pt2_compliant_tag});
}

// Under vmap the same calls, where torch would run them row by row.
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("learned_inv_freq", learned_inv_freq_impl);
}

}  // namespace

at::Tensor learned_inv_freq(const at::Tensor& weight, at::ArrayRef<double> inv_freq,
                            c10::string_view parametrisation) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, at::ArrayRef<double>, c10::string_view)>(
          "posenc::learned_inv_freq");
  return op.call(weight, inv_freq, parametrisation);
}

}  // namespace posenc
