// RotaryPositionalEmbedding: packed projections, and what a cache asks for.

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <posenc/core/dispatch.h>
#include <posenc/rotary/rotary_cache.h>
#include <posenc/rotary/rotary_module.h>
#include <posenc/rotary/rotary_qkv.h>

namespace posenc::nn {

at::Tensor RotaryPositionalEmbeddingImpl::rotate_packed(
    const at::Tensor& qkv, std::optional<int64_t> n_kv_heads,
    const std::optional<at::Tensor>& position_ids, int64_t offset) const {
  const char* op = "RotaryPositionalEmbedding.rotate_packed";
  TORCH_CHECK_VALUE((qkv.dim() == 4 || qkv.dim() == 5) && qkv.size(-1) == options.d_model(), op,
                    ": expected qkv of shape (B, L, heads, ", options.d_model(),
                    ") or (B, L, 3, H, ", options.d_model(), "), got ", qkv.sizes());
  int64_t kv_heads = 0, heads = 0;
  if (qkv.dim() == 5) {
    heads = qkv.size(3);
    kv_heads = n_kv_heads.value_or(heads);
  } else {
    TORCH_CHECK_VALUE(n_kv_heads.has_value() || qkv.size(2) % 3 == 0, op,
                      ": expected n_kv_heads, or a number of heads divisible by 3, got ",
                      qkv.size(2), " heads in qkv of shape ", qkv.sizes());
    kv_heads = n_kv_heads.value_or(qkv.size(2) / 3);
    heads = qkv.size(2) - 2 * kv_heads;
    TORCH_CHECK_VALUE(kv_heads > 0 && heads > 0, op, ": expected n_kv_heads in [1, ",
                      (qkv.size(2) - 1) / 2, "] for qkv of shape ", qkv.sizes(), ", got ",
                      kv_heads);
  }
  if (!options.scaling().depends_on_length()) {
    return rotary_embedding_qkv(qkv, frequencies.inv_freq, heads, kv_heads, position_ids, offset,
                                options.seq_dim(), options.reads_pairs(), options.interleaved_out(),
                                options.rotary_start(), frequencies.attention_factor, axes_ref(),
                                options.inverse());
  }
  const int64_t rotated = qkv.dim() == 5 ? 2 : heads + kv_heads;
  return at::cat({forward(qkv.narrow(2, 0, rotated), position_ids, offset),
                  qkv.narrow(2, rotated, qkv.size(2) - rotated)},
                 2);
}

at::Tensor RotaryPositionalEmbeddingImpl::inv_freq_at(const at::Tensor& lengths) const {
  if (!options.scaling().depends_on_length()) {
    TORCH_CHECK_VALUE(lengths.dim() == 1,
                      "RotaryPositionalEmbedding.inv_freq_at: expected lengths of shape (B), got ",
                      lengths.sizes());
    return core::float_list_tensor(frequencies.inv_freq, lengths.options().dtype(at::kDouble))
        .expand({lengths.size(0), 1, -1});
  }
  return frequencies.long_inv_freq.empty()
             ? dynamic_ntk_inv_freq(lengths, frequencies.inv_freq, *options.scaling().factor,
                                    frequencies.trained_length, frequencies.dim)
             : longrope_inv_freq(lengths, frequencies.inv_freq, frequencies.long_inv_freq,
                                 frequencies.trained_length);
}

std::vector<double> RotaryPositionalEmbeddingImpl::inv_freq_at(int64_t length) const {
  if (!options.scaling().depends_on_length()) {
    return frequencies.inv_freq;
  }
  const at::Tensor row = inv_freq_at(at::full({1}, length, at::kLong)).contiguous();
  const double* first = row.const_data_ptr<double>();
  return {first, first + row.numel()};
}

bool RotaryPositionalEmbeddingImpl::layout_out() const {
  return options.interleaved_out().value_or(options.reads_pairs());
}

at::Tensor RotaryPositionalEmbeddingImpl::shift(const at::Tensor& keys, const at::Tensor& delta,
                                                const std::optional<InvFreq>& inv_freq) const {
  const char* op = "RotaryPositionalEmbedding.shift";
  TORCH_CHECK_VALUE(axes.empty(), op,
                    ": expected one position axis; keys that stand at several positions each "
                    "(images and videos among text) cannot be moved by one number");
  TORCH_CHECK_VALUE(inv_freq.has_value() || !options.scaling().depends_on_length(), op,
                    ": expected inv_freq, the frequencies that the keys carry (see inv_freq_at), "
                    "because those of type ",
                    options.scaling().type, " depend on the length");
  return std::visit(
      [&](const auto& freq) {  // an overload for a tensor, one for a list
        return posenc::shift(keys, delta, freq, options.seq_dim(), layout_out(),
                             options.rotary_start(), options.inverse());
      },
      inv_freq.value_or(frequencies.inv_freq));
}

at::Tensor RotaryPositionalEmbeddingImpl::shift(const at::Tensor& keys, int64_t delta,
                                                const std::optional<InvFreq>& inv_freq) const {
  return shift(keys, at::full({1}, delta, keys.options().dtype(at::kLong)), inv_freq);
}

at::Tensor RotaryPositionalEmbeddingImpl::re_rotate(
    const at::Tensor& keys, const InvFreq& old_inv_freq, const std::optional<InvFreq>& new_inv_freq,
    const std::optional<at::Tensor>& position_ids, int64_t offset,
    std::optional<double> old_attention_factor) const {
  TORCH_CHECK_VALUE(new_inv_freq.has_value() || !options.scaling().depends_on_length(),
                    "RotaryPositionalEmbedding.re_rotate: expected new_inv_freq (see inv_freq_at), "
                    "because the frequencies of type ",
                    options.scaling().type, " depend on the length");
  const InvFreq target = new_inv_freq.value_or(frequencies.inv_freq);
  const double factor = frequencies.attention_factor;
  const auto call = [&](const auto& from, const auto& to) {
    return posenc::re_rotate(keys, from, to, position_ids, offset, options.seq_dim(), layout_out(),
                             options.rotary_start(), old_attention_factor.value_or(factor), factor,
                             axes_ref(), options.inverse());
  };
  using List = std::vector<double>;
  if (std::holds_alternative<List>(old_inv_freq) && std::holds_alternative<List>(target)) {
    return call(at::ArrayRef<double>(std::get<List>(old_inv_freq)),
                at::ArrayRef<double>(std::get<List>(target)));
  }
  const auto tensor = [&](const InvFreq& freq) {
    return std::holds_alternative<List>(freq)
               ? core::float_list_tensor(std::get<List>(freq), keys.options().dtype(at::kDouble))
               : std::get<at::Tensor>(freq);
  };
  return call(tensor(old_inv_freq), tensor(target));
}

}  // namespace posenc::nn
