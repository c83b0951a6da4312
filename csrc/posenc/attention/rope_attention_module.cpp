#include <posenc/attention/rope_attention_module.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <posenc/core/dispatch.h>
#include <posenc/rotary/rotary_module.h>
#include <posenc/rotary/rotary_qk.h>

#include <limits>
#include <ostream>

namespace posenc::nn {

RoPEAttentionImpl::RoPEAttentionImpl(RoPEAttentionOptions options_) : options(std::move(options_)) {
  reset();
}

void RoPEAttentionImpl::reset() {
  const auto shape =
      detail::AttentionShape::of("RoPEAttention", options.d_model(), options.n_heads(),
                                 options.n_kv_heads(), options.dropout());
  RotaryPositionalEmbeddingOptions rope(shape.head_dim);
  rope.base(options.base()).interleaved(options.interleaved()).rotary_dim(options.rotary_dim());
  rope.check();
  inv_freq = rope_inv_freq(rope.width(), options.base());
  const int64_t kv_width = shape.n_kv_heads * shape.head_dim;
  const auto linear = [&](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias()));
  };
  query_proj = register_module("query_proj", linear(shape.d_model, shape.d_model));
  key_proj = register_module("key_proj", linear(shape.d_model, kv_width));
  value_proj = register_module("value_proj", linear(shape.d_model, kv_width));
  out_proj = register_module("out_proj", linear(shape.d_model, shape.d_model));
}

void RoPEAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::RoPEAttention(d_model=" << options.d_model()
         << ", n_heads=" << options.n_heads()
         << ", n_kv_heads=" << options.n_kv_heads().value_or(options.n_heads())
         << ", base=" << options.base() << std::boolalpha
         << ", interleaved=" << options.interleaved() << ", rotary_dim=" << 2 * inv_freq.size()
         << ", is_causal=" << options.is_causal() << ", dropout=" << options.dropout() << ")";
}

at::Tensor RoPEAttentionImpl::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                                      const std::optional<at::Tensor>& attn_bias,
                                      const std::optional<at::Tensor>& key_padding_mask,
                                      const std::optional<at::Tensor>& position_ids,
                                      int64_t offset) {
  return run(x, nullptr, {mask, attn_bias, key_padding_mask, position_ids, offset});
}

at::Tensor RoPEAttentionImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                             const AttentionInputs& inputs) {
  return run(x, &cache, inputs);
}

at::Tensor RoPEAttentionImpl::run(const at::Tensor& x, KVCache* cache,
                                  const AttentionInputs& inputs) {
  const char* op = "RoPEAttention";
  const int64_t cached = cache == nullptr ? 0 : cache->size();
  detail::check_layer_inputs(op, x, options.d_model(), cached, inputs);
  const int64_t kv_heads = options.n_kv_heads().value_or(options.n_heads());

  const at::Tensor positions = detail::new_positions(x, inputs);
  const int64_t offset = inputs.offset + (positions.defined() ? 0 : cached);
  auto [q, k] = rotary_embedding_qk(detail::split_heads(query_proj(x), options.n_heads()),
                                    detail::split_heads(key_proj(x), kv_heads), inv_freq,
                                    core::optional_of(positions), offset, /*seq_dim=*/2,
                                    options.interleaved());
  at::Tensor v = detail::split_heads(value_proj(x), kv_heads);
  if (cache != nullptr) {
    cache->append(k, v, at::Tensor(), /*track_norms=*/false);
    k = cache->keys();
    v = cache->values();
  }

  const int64_t q_len = q.size(2), k_len = k.size(2);
  const double dropout = is_training() ? options.dropout() : 0.0;
  const bool grouped = kv_heads != options.n_heads();
  at::Tensor allowed =
      detail::allowed_keys(op, inputs, x.size(0), options.n_heads(), q_len, k_len, x.device());
  // torch takes a mask or is_causal, and its is_causal is aligned at the top left: with a cache, or
  // a mask, causality is one more mask.
  const bool causal_mask =
      options.is_causal() && (allowed.defined() || inputs.attn_bias.has_value() || q_len != k_len);
  if (causal_mask && !(q_len == 1 && !allowed.defined())) {
    const at::Tensor index = at::arange(k_len, x.options().dtype(at::kLong));
    const at::Tensor past = (index.unsqueeze(0) <= index.narrow(0, cached, q_len).unsqueeze(1))
                                .unsqueeze(0)
                                .unsqueeze(0);
    allowed = allowed.defined() ? allowed.logical_and(past) : past;
  }
  at::Tensor has_key, attn_mask = allowed;
  if (allowed.defined()) {
    detail::zero_unseen(allowed, k, v);
    // A row without a key would be NaN, or the mean, depending on the kernel. It sees all here and
    // is replaced below, in the gradient too.
    has_key = allowed.any(-1, /*keepdim=*/true);
    attn_mask = allowed.logical_or(has_key.logical_not());
  }
  if (inputs.attn_bias.has_value()) {
    at::Tensor bias = inputs.attn_bias->to(q.scalar_type());
    if (attn_mask.defined()) {
      bias = at::where(attn_mask, bias,
                       at::full({}, -std::numeric_limits<double>::infinity(), bias.options()));
    }
    while (bias.dim() < 4) {
      bias = bias.unsqueeze(0);
    }
    attn_mask = bias;
  }
  at::Tensor out =
      at::scaled_dot_product_attention(q, k, v, core::optional_of(attn_mask), dropout,
                                       options.is_causal() && !causal_mask, std::nullopt, grouped);
  if (has_key.defined()) {
    out = at::where(has_key, out, at::zeros({}, out.options()));
  }
  return out_proj(detail::join_heads(out));
}

}  // namespace posenc::nn
