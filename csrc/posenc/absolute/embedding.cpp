#include <ATen/ops/empty.h>
#include <posenc/absolute/embedding.h>
#include <posenc/absolute/embedding_checks.h>
#include <posenc/absolute/encoding.h>
#include <posenc/absolute/frequencies.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>

namespace posenc {

at::Tensor embed_tokens(const at::Tensor& input_ids, const at::Tensor& weight,
                        c10::ArrayRef<double> inv_freq,
                        const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                        bool interleaved, double scale, int64_t padding_idx) {
  static const auto op = core::find_op<at::Tensor(
      const at::Tensor&, const at::Tensor&, c10::ArrayRef<double>, const std::optional<at::Tensor>&,
      c10::SymInt, bool, double, int64_t)>("posenc::embed_tokens");
  return op.call(input_ids, weight, inv_freq, position_ids, std::move(offset), interleaved, scale,
                 padding_idx);
}

namespace absolute {

void check_embed_tokens(const at::Tensor& input_ids, const at::Tensor& weight,
                        c10::ArrayRef<double> inv_freq,
                        const std::optional<at::Tensor>& position_ids, int64_t padding_idx) {
  constexpr const char* op = "embed_tokens";
  core::check_floating(op, "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() == 2, op, ": expected weight of shape (num_rows, d_model), got ",
                    weight.sym_sizes());
  TORCH_CHECK_TYPE(input_ids.scalar_type() == at::kLong || input_ids.scalar_type() == at::kInt, op,
                   ": expected input_ids of dtype int64 or int32, got ", input_ids.scalar_type());
  TORCH_CHECK_VALUE(input_ids.dim() == 1 || input_ids.dim() == 2, op,
                    ": expected input_ids of shape (B, L) or (L), got ", input_ids.sym_sizes());
  TORCH_CHECK_VALUE(input_ids.device() == weight.device(), op,
                    ": expected input_ids on weight's device ", weight.device(), ", got ",
                    input_ids.device());
  check_frequencies(op, static_cast<int64_t>(inv_freq.size()), weight.sym_size(1));
  TORCH_CHECK_VALUE(padding_idx >= -1 && holds(weight.sym_size(0).sym_gt(padding_idx)), op,
                    ": expected padding_idx -1 (none) or a row of the table, 0 ... ",
                    weight.sym_size(0) - 1, ", got ", padding_idx);
  // With the channels that the embedding will have, ids are tokens as x is elsewhere.
  core::check_position_ids(op, position_ids, input_ids.unsqueeze(-1), input_ids.dim() - 1);
}

at::Tensor empty_embedding(const at::Tensor& input_ids, const at::Tensor& weight) {
  std::vector<c10::SymInt> shape = input_ids.sym_sizes().vec();
  shape.push_back(weight.sym_size(1));
  return at::empty_symint(shape, weight.options());
}

}  // namespace absolute

}  // namespace posenc
