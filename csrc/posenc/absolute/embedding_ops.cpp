#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <posenc/absolute/embedding.h>
#include <posenc/absolute/embedding_checks.h>
#include <posenc/absolute/encoding.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor embed_tokens_meta(const at::Tensor& input_ids, const at::Tensor& weight,
                             c10::ArrayRef<double> inv_freq, const OptionalTensor& position_ids,
                             c10::SymInt /*offset*/, bool /*interleaved*/, double /*scale*/,
                             int64_t padding_idx) {
  check_embed_tokens(input_ids, weight, inv_freq, position_ids, padding_idx);
  return empty_embedding(input_ids, weight);
}

at::Tensor embed_tokens_composite(const at::Tensor& input_ids, const at::Tensor& weight,
                                  c10::ArrayRef<double> inv_freq,
                                  const OptionalTensor& position_ids, c10::SymInt offset,
                                  bool interleaved, double scale, int64_t padding_idx) {
  check_embed_tokens(input_ids, weight, inv_freq, position_ids, padding_idx);
  const at::ScalarType compute = core::compute_dtype(weight.scalar_type());
  at::Tensor positions =
      core::position_tensor(position_ids, offset, input_ids.sym_size(-1), input_ids.options())
          .select(0, 0);
  if (input_ids.dim() == 1) {
    positions = positions.select(0, 0);
  }
  const at::Tensor rows =
      composite_encoding(positions, inv_freq, weight.sym_size(1), interleaved, compute);
  const at::Tensor tokens = at::embedding(weight, input_ids, padding_idx).to(compute);
  return tokens.mul(scale).add(rows).to(weight.scalar_type());
}

class EmbedTokens : public torch::autograd::Function<EmbedTokens> {
 public:
  static constexpr bool is_traceable = true;  // compiled autograd

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input_ids,
                            const at::Tensor& weight, c10::ArrayRef<double> inv_freq,
                            const OptionalTensor& position_ids, c10::SymInt offset,
                            bool interleaved, double scale, int64_t padding_idx) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({input_ids});
    ctx->saved_data["num_rows"] = weight.sym_size(0);
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["padding_idx"] = padding_idx;
    return embed_tokens(input_ids, weight, inv_freq, position_ids, offset, interleaved, scale,
                        padding_idx);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor& grad = grads[0];
    at::Tensor grad_weight;
    if (grad.defined()) {
      // ATen's scatter has derivatives of every order. Half types are summed in fp32, rounded once.
      const at::ScalarType compute = core::compute_dtype(grad.scalar_type());
      grad_weight = at::embedding_dense_backward_symint(
                        grad.to(compute), ctx->get_saved_variables()[0],
                        ctx->saved_data["num_rows"].toSymInt(),
                        ctx->saved_data["padding_idx"].toInt(), /*scale_grad_by_freq=*/false)
                        .mul(ctx->saved_data["scale"].toDouble())
                        .to(grad.scalar_type());
    }
    return {{}, grad_weight, {}, {}, {}, {}, {}, {}};
  }
};

at::Tensor embed_tokens_autograd(const at::Tensor& input_ids, const at::Tensor& weight,
                                 c10::ArrayRef<double> inv_freq, const OptionalTensor& position_ids,
                                 c10::SymInt offset, bool interleaved, double scale,
                                 int64_t padding_idx) {
  const at::Tensor positions = core::value_or_undefined(position_ids);
  if (core::needs_composite({weight, positions}) || core::wants_grad({positions})) {
    return embed_tokens_composite(input_ids, weight, inv_freq, position_ids, offset, interleaved,
                                  scale, padding_idx);
  }
  if (core::wants_grad({weight})) {
    return EmbedTokens::apply(input_ids, weight, inv_freq, position_ids, offset, interleaved, scale,
                              padding_idx);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return embed_tokens(input_ids, weight, inv_freq, position_ids, offset, interleaved, scale,
                      padding_idx);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "embed_tokens(Tensor input_ids, Tensor weight, float[] inv_freq, Tensor? position_ids=None, "
      "SymInt offset=0, bool interleaved=True, float scale=1., int padding_idx=-1) -> Tensor",
      tags);
}
TORCH_LIBRARY_IMPL(posenc, Meta, m) { m.impl("embed_tokens", TORCH_FN(embed_tokens_meta)); }
TORCH_LIBRARY_IMPL(posenc, Autograd, m) { m.impl("embed_tokens", TORCH_FN(embed_tokens_autograd)); }
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("embed_tokens", TORCH_FN(embed_tokens_composite));
}
TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("embed_tokens", TORCH_FN(embed_tokens_composite));
}

}  // namespace posenc::absolute
