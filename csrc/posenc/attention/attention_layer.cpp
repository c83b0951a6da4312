#include <posenc/attention/attention_layer.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <posenc/bias/masked_softmax.h>
#include <posenc/core/checks.h>
#include <posenc/core/positions.h>

#include <cmath>

namespace posenc::nn::detail {
namespace {

/// Heads of k or v repeated to those of q.
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  if (x.size(1) == heads) {
    return x;
  }
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), heads / x.size(1), x.size(2), x.size(3)})
      .flatten(1, 2);
}

}  // namespace

AttentionShape AttentionShape::of(const char* op, int64_t d_model, int64_t n_heads,
                                  std::optional<int64_t> n_kv_heads, double dropout) {
  TORCH_CHECK_VALUE(d_model > 0 && n_heads > 0 && d_model % n_heads == 0, op,
                    ": expected a d_model that is a positive multiple of n_heads, got d_model ",
                    d_model, " and n_heads ", n_heads);
  const int64_t kv = n_kv_heads.value_or(n_heads);
  TORCH_CHECK_VALUE(kv > 0 && n_heads % kv == 0, op,
                    ": expected n_heads to be a multiple of n_kv_heads, got n_heads ", n_heads,
                    " and n_kv_heads ", kv);
  TORCH_CHECK_VALUE(dropout >= 0 && dropout < 1, op, ": expected dropout in [0, 1), got ", dropout);
  return {d_model, n_heads, kv, d_model / n_heads};
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& x) { return x.transpose(1, 2).flatten(-2); }

void check_layer_inputs(const char* op, const at::Tensor& x, int64_t d_model, int64_t cached,
                        const AttentionInputs& inputs) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == d_model, op, ": expected x of shape (B, L, ",
                    d_model, "), got ", x.sizes());
  if (inputs.attn_bias.has_value()) {
    TORCH_CHECK_TYPE(at::isFloatingType(inputs.attn_bias->scalar_type()), op,
                     ": expected attn_bias of a floating dtype (it is added to the scores; to "
                     "block positions use mask), got ",
                     inputs.attn_bias->scalar_type());
  }
  if (inputs.key_padding_mask.has_value()) {
    const at::Tensor& padding = *inputs.key_padding_mask;
    const int64_t keys = cached + x.size(1);
    TORCH_CHECK_VALUE(
        padding.dim() == 2 && (padding.size(0) == 1 || padding.size(0) == x.size(0)) &&
            padding.size(1) == keys,
        op, ": expected key_padding_mask of shape (", x.size(0), ", ", keys,
        "), all keys: ", cached, " cached and ", x.size(1), " new, got ", padding.sizes());
  }
}

at::Tensor new_positions(const at::Tensor& x, const AttentionInputs& inputs) {
  if (inputs.position_ids.has_value()) {
    core::check_position_ids("attention layer", inputs.position_ids, x, /*seq_dim=*/1);
    return inputs.position_ids->dim() == 1 ? inputs.position_ids->unsqueeze(0)
                                           : *inputs.position_ids;
  }
  if (inputs.key_padding_mask.has_value()) {
    const at::Tensor all = positions_from_mask(*inputs.key_padding_mask);
    return all.narrow(1, all.size(1) - x.size(1), x.size(1));
  }
  return {};
}

at::Tensor allowed_keys(const char* op, const AttentionInputs& inputs, int64_t batch, int64_t heads,
                        int64_t q_len, int64_t k_len, const at::Device& device) {
  at::Tensor allowed;
  if (inputs.mask.has_value()) {
    allowed = *inputs.mask != 0;
    bias::check_mask(op, allowed, batch, heads, q_len, k_len, device);
  }
  if (inputs.key_padding_mask.has_value()) {
    const at::Tensor real =
        (*inputs.key_padding_mask != 0).unsqueeze(1).unsqueeze(1);  // (B, 1, 1, S)
    allowed = allowed.defined() ? allowed.logical_and(real) : real;
  }
  while (allowed.defined() && allowed.dim() < 4) {
    allowed = allowed.unsqueeze(0);
  }
  return allowed;
}

void zero_unseen(const at::Tensor& allowed, at::Tensor& k, at::Tensor& v) {
  // (1 or B, 1, S or 1, 1): what any query of any head sees.
  const at::Tensor seen = allowed.any(-2).any(1, /*keepdim=*/true).unsqueeze(-1);
  k = at::where(seen, k, at::zeros({}, k.options()));
  v = at::where(seen, v, at::zeros({}, v.options()));
}

at::Tensor dense_attention(const at::Tensor& q, at::Tensor k, at::Tensor v, const at::Tensor& bias,
                           const at::Tensor& allowed, double dropout, bool training) {
  if (k.size(2) == 0) {
    return at::matmul(q, k.transpose(-2, -1)).matmul(v);  // no keys: zeros of the right shape
  }
  if (allowed.defined()) {
    zero_unseen(allowed, k, v);
  }
  k = repeat_heads(k, q.size(1));
  v = repeat_heads(v, q.size(1));
  const at::ScalarType compute = core::compute_dtype(q.scalar_type());
  at::Tensor scores =
      at::matmul(q, k.transpose(-2, -1)).to(compute) / std::sqrt(static_cast<double>(q.size(-1)));
  if (bias.defined()) {
    scores = scores + bias;
  }
  at::Tensor weights = bias::masked_softmax(scores, allowed).weights.to(v.scalar_type());
  if (allowed.defined()) {
    bias::isolate_broken(allowed, weights, v);
  }
  return at::matmul(at::dropout(weights, dropout, training), v);
}

}  // namespace posenc::nn::detail
