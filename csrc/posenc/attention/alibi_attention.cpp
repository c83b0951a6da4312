// The public functions: each calls its operator through the dispatcher, so that gradients,
// transforms and every device work.

#include <posenc/attention/alibi_attention.h>
#include <posenc/core/dispatch.h>

namespace posenc {

using at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

std::tuple<Tensor, Tensor> alibi_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           at::ArrayRef<double> slopes, const OptionalTensor& mask,
                                           bool is_causal, std::optional<double> scale,
                                           std::optional<c10::SymInt> offset,
                                           const OptionalTensor& q_positions,
                                           const OptionalTensor& k_positions,
                                           const OptionalTensor& key_norms) {
  static const auto op = core::find_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, at::ArrayRef<double>, const OptionalTensor&,
      bool, std::optional<double>, std::optional<c10::SymInt>, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&)>("posenc::alibi_attention");
  return op.call(q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions,
                 key_norms);
}

std::tuple<Tensor, Tensor> alibi_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& slopes, const OptionalTensor& mask,
                                           bool is_causal, std::optional<double> scale,
                                           std::optional<c10::SymInt> offset,
                                           const OptionalTensor& q_positions,
                                           const OptionalTensor& k_positions,
                                           const OptionalTensor& key_norms) {
  static const auto op = core::find_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, bool,
      std::optional<double>, std::optional<c10::SymInt>, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&)>("posenc::alibi_attention", "Tensor");
  return op.call(q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions,
                 key_norms);
}

Tensor alibi_key_norms(const Tensor& k, const Tensor& v) {
  static const auto op =
      core::find_op<Tensor(const Tensor&, const Tensor&)>("posenc::alibi_key_norms");
  return op.call(k, v);
}

Tensor alibi_attention_blocks(const Tensor& q, const Tensor& k, const Tensor& v,
                              at::ArrayRef<double> slopes, const OptionalTensor& mask,
                              bool is_causal, std::optional<double> scale,
                              std::optional<c10::SymInt> offset, const OptionalTensor& q_positions,
                              const OptionalTensor& k_positions, const OptionalTensor& key_norms) {
  static const auto op = core::find_op<Tensor(
      const Tensor&, const Tensor&, const Tensor&, at::ArrayRef<double>, const OptionalTensor&,
      bool, std::optional<double>, std::optional<c10::SymInt>, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&)>("posenc::alibi_attention_blocks");
  return op.call(q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions,
                 key_norms);
}

std::tuple<Tensor, Tensor> merge_attention(const Tensor& out1, const Tensor& lse1,
                                           const Tensor& out2, const Tensor& lse2) {
  static const auto op = core::find_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("posenc::merge_attention");
  return op.call(out1, lse1, out2, lse2);
}

}  // namespace posenc
