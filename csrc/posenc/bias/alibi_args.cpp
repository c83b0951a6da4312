#include <posenc/bias/alibi_args.h>

#include <ATen/ops/empty.h>
#include <posenc/bias/masked_softmax.h>
#include <posenc/core/checks.h>

namespace posenc::bias {

at::ScalarType bias_dtype(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

void check_bias(const char* op, const c10::SymInt& q_len, const c10::SymInt& k_len,
                at::ScalarType dtype) {
  TORCH_CHECK_VALUE(q_len >= 0 && k_len >= 0, op, ": expected q_len and k_len >= 0, got ", q_len,
                    " and ", k_len);
  TORCH_CHECK_TYPE(
      dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
      op, ": expected dtype float64, float32, bfloat16 or float16, got ", dtype);
}

void check_bias(const char* op, const at::Tensor& slopes, const c10::SymInt& q_len,
                const c10::SymInt& k_len, std::optional<at::ScalarType> dtype) {
  core::check_floating(op, "slopes", slopes);
  TORCH_CHECK_VALUE(slopes.dim() == 1 || slopes.dim() == 2, op,
                    ": expected slopes of shape (H) or (B, H), got ", slopes.sym_sizes());
  check_bias(op, q_len, k_len, dtype.value_or(slopes.scalar_type()));
}

at::Tensor empty_bias(const at::Tensor& slopes, const c10::SymInt& q_len, const c10::SymInt& k_len,
                      std::optional<at::ScalarType> dtype) {
  c10::SymDimVector shape(slopes.sym_sizes().begin(), slopes.sym_sizes().end());
  shape.push_back(q_len);
  shape.push_back(k_len);
  return at::empty_symint(shape, slopes.options().dtype(dtype.value_or(slopes.scalar_type())));
}

void check_softmax(const char* op, const at::Tensor& scores, int64_t n_slopes,
                   const std::optional<at::Tensor>& mask) {
  core::check_floating(op, "scores", scores);
  TORCH_CHECK_VALUE(scores.dim() == 4, op, ": expected scores of shape (B, H, L, S), got ",
                    scores.sym_sizes());
  TORCH_CHECK_VALUE(scores.sym_size(1) == n_slopes, op, ": expected ", scores.sym_size(1),
                    " slopes, one per head of scores (B, H, L, S), got ", n_slopes);
  if (mask.has_value()) {
    check_mask(op, *mask, scores.sym_size(0), scores.sym_size(1), scores.sym_size(2),
               scores.sym_size(3), scores.device());
  }
}

void check_softmax_backward(const at::Tensor& grad, const at::Tensor& output) {
  const char* op = "_alibi_softmax_backward";
  core::check_floating(op, "output", output);
  TORCH_CHECK_VALUE(output.dim() == 4 && grad.sym_sizes() == output.sym_sizes(), op,
                    ": expected grad and output of one shape (B, H, L, S), got ", grad.sym_sizes(),
                    " and ", output.sym_sizes());
  TORCH_CHECK_VALUE(grad.device() == output.device(), op, ": expected grad on output's device ",
                    output.device(), ", got ", grad.device());
}

}  // namespace posenc::bias
