#include <posenc/attention/alibi_attention_module.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <posenc/attention/alibi_attention.h>
#include <posenc/bias/alibi.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>

#include <ostream>

namespace posenc::nn {

ALiBiAttentionImpl::ALiBiAttentionImpl(ALiBiAttentionOptions options_)
    : options(std::move(options_)) {
  reset();
}

void ALiBiAttentionImpl::reset() {
  const auto shape =
      detail::AttentionShape::of("ALiBiAttention", options.d_model(), options.n_heads(),
                                 options.n_kv_heads(), options.dropout());
  TORCH_CHECK_VALUE(options.max_seq_len() > 0, "ALiBiAttention: expected max_seq_len > 0, got ",
                    options.max_seq_len());
  slopes = alibi_slopes(shape.n_heads);
  const int64_t kv_width = shape.n_kv_heads * shape.head_dim;
  const auto linear = [&](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias()));
  };
  query_proj = register_module("query_proj", linear(shape.d_model, shape.d_model));
  key_proj = register_module("key_proj", linear(shape.d_model, kv_width));
  value_proj = register_module("value_proj", linear(shape.d_model, kv_width));
  out_proj = register_module("out_proj", linear(shape.d_model, shape.d_model));
}

void ALiBiAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::ALiBiAttention(d_model=" << options.d_model()
         << ", n_heads=" << options.n_heads()
         << ", n_kv_heads=" << options.n_kv_heads().value_or(options.n_heads()) << std::boolalpha
         << ", is_causal=" << options.is_causal() << ", dropout=" << options.dropout() << ")";
}

at::Tensor ALiBiAttentionImpl::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                                       const std::optional<at::Tensor>& attn_bias,
                                       const std::optional<at::Tensor>& key_padding_mask,
                                       const std::optional<at::Tensor>& position_ids,
                                       int64_t offset) {
  return run(x, nullptr, {mask, attn_bias, key_padding_mask, position_ids, offset});
}

at::Tensor ALiBiAttentionImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                              const AttentionInputs& inputs) {
  return run(x, &cache, inputs);
}

at::Tensor ALiBiAttentionImpl::run(const at::Tensor& x, KVCache* cache,
                                   const AttentionInputs& inputs) {
  const char* op = "ALiBiAttention";
  const int64_t cached = cache == nullptr ? 0 : cache->size();
  detail::check_layer_inputs(op, x, options.d_model(), cached, inputs);
  const int64_t kv_heads = options.n_kv_heads().value_or(options.n_heads());
  const at::Tensor q = detail::split_heads(query_proj(x), options.n_heads());
  at::Tensor k = detail::split_heads(key_proj(x), kv_heads),
             v = detail::split_heads(value_proj(x), kv_heads);
  at::Tensor q_positions = detail::new_positions(x, inputs), k_positions = q_positions;
  std::optional<at::Tensor> norms;
  if (cache != nullptr) {
    cache->append(k, v, q_positions, /*track_norms=*/true);
    k = cache->keys();
    v = cache->values();
    k_positions = cache->positions();
    norms = core::optional_of(cache->key_norms());
    if (k_positions.defined() && !q_positions.defined()) {
      q_positions = k_positions.narrow(1, cached, x.size(1));
    }
  }
  const at::Tensor allowed = detail::allowed_keys(op, inputs, x.size(0), options.n_heads(),
                                                  q.size(2), k.size(2), x.device());
  const bool dense = inputs.attn_bias.has_value() || (is_training() && options.dropout() > 0);
  if (!dense) {
    const auto [out, lse] = alibi_attention(
        q, k, v, slopes, core::optional_of(allowed), options.is_causal(), std::nullopt,
        std::nullopt, core::optional_of(q_positions), core::optional_of(k_positions), norms);
    return out_proj(detail::join_heads(out));
  }

  // The bias matrix itself, −slope·distance, and causality from the same distances.
  if (!k_positions.defined()) {
    k_positions = at::arange(k.size(2), x.options().dtype(at::kLong)).unsqueeze(0);
    q_positions = k_positions.narrow(1, cached, x.size(1));
  }
  const at::ScalarType compute = core::compute_dtype(q.scalar_type());
  const at::Tensor distance =
      (k_positions.unsqueeze(1) - q_positions.unsqueeze(2)).unsqueeze(1);  // (1 or B, 1, L, S)
  const at::Tensor m =
      core::float_list_tensor(slopes, q.options().dtype(compute)).unsqueeze(-1).unsqueeze(-1);
  at::Tensor bias = distance.abs().to(compute) * m.neg();
  if (inputs.attn_bias.has_value()) {
    bias = bias + *inputs.attn_bias;
  }
  at::Tensor seen = allowed;
  if (options.is_causal()) {
    const at::Tensor past = distance <= 0;
    seen = seen.defined() ? seen.logical_and(past) : past;
  }
  return out_proj(detail::join_heads(
      detail::dense_attention(q, k, v, bias, seen, options.dropout(), is_training())));
}

}  // namespace posenc::nn
