#include <ATen/ops/arange.h>
#include <c10/core/DefaultDtype.h>
#include <posenc/absolute/encoding.h>
#include <posenc/absolute/sinusoidal.h>
#include <posenc/absolute/sinusoidal_checks.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>

namespace posenc {

at::Tensor sinusoidal_encoding(const at::Tensor& position_ids, c10::ArrayRef<double> inv_freq,
                               int64_t d_model, bool interleaved,
                               std::optional<at::ScalarType> dtype) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, c10::ArrayRef<double>, int64_t, bool,
                               std::optional<at::ScalarType>)>("posenc::sinusoidal_encoding");
  return op.call(position_ids, inv_freq, d_model, interleaved, dtype);
}

at::Tensor add_sinusoidal(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                          const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                          int64_t seq_dim, bool interleaved, double scale) {
  static const auto op = core::find_op<at::Tensor(const at::Tensor&, c10::ArrayRef<double>,
                                                  const std::optional<at::Tensor>&, c10::SymInt,
                                                  int64_t, bool, double)>("posenc::add_sinusoidal");
  return op.call(x, inv_freq, position_ids, std::move(offset), seq_dim, interleaved, scale);
}

at::Tensor get_positional_encoding(int64_t seq_len, int64_t d_model) {
  TORCH_CHECK_VALUE(seq_len >= 0, "get_positional_encoding: expected seq_len >= 0, got ", seq_len);
  TORCH_CHECK_VALUE(d_model >= 1, "get_positional_encoding: expected d_model >= 1, got ", d_model);
  return sinusoidal_encoding(at::arange(seq_len, at::kLong), sinusoidal_inv_freq(d_model), d_model);
}

at::Tensor add_positional_encoding(const at::Tensor& x, int64_t max_seq_len) {
  TORCH_CHECK_VALUE(x.dim() == 2 || x.dim() == 3,
                    "add_positional_encoding: expected embeddings of shape (B, L, d_model) or (L, "
                    "d_model), got ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(absolute::holds(x.sym_size(-2).sym_le(max_seq_len)),
                    "add_positional_encoding: expected at most max_seq_len = ", max_seq_len,
                    " positions, got ", x.sym_size(-2));
  return add_sinusoidal(x, sinusoidal_inv_freq(x.size(-1)), std::nullopt, 0, -2);
}

namespace absolute {

at::ScalarType check_sinusoidal_encoding(const at::Tensor& position_ids,
                                         c10::ArrayRef<double> inv_freq, int64_t d_model,
                                         std::optional<at::ScalarType> dtype) {
  constexpr const char* op = "sinusoidal_encoding";
  const at::ScalarType ids = position_ids.scalar_type();
  // As in every operator: bfloat16 holds 8 bits, so that positions 256 and 257 would be one.
  TORCH_CHECK_TYPE(
      c10::isIntegralType(ids, /*includeBool=*/false) || ids == at::kFloat || ids == at::kDouble,
      op, ": expected position_ids of an integer dtype, float32 or float64, got ", ids);
  check_frequencies(op, static_cast<int64_t>(inv_freq.size()), d_model);
  const at::ScalarType result = dtype.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK_TYPE(result == at::kDouble || result == at::kFloat || result == at::kBFloat16 ||
                       result == at::kHalf,
                   op, ": expected dtype float64, float32, bfloat16 or float16, got ", result);
  return result;
}

int64_t check_add_sinusoidal(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                             const std::optional<at::Tensor>& position_ids, int64_t seq_dim) {
  constexpr const char* op = "add_sinusoidal";
  const int64_t axis = check_tokens(op, x, seq_dim);
  check_frequencies(op, static_cast<int64_t>(inv_freq.size()), x.sym_size(-1));
  core::check_position_ids(op, position_ids, x, axis);
  return axis;
}

}  // namespace absolute

}  // namespace posenc
