#pragma once

#include <posenc/attention/attention_layer.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace posenc::nn {

/// Options of RoPEAttention.
///
/// \code
/// RoPEAttention attention(RoPEAttentionOptions(/*d_model=*/512, /*n_heads=*/8).n_kv_heads(2));
/// \endcode
struct POSENC_API RoPEAttentionOptions {
  RoPEAttentionOptions(int64_t d_model, int64_t n_heads) : d_model_(d_model), n_heads_(n_heads) {}

  /// Channels of input and output, a multiple of n_heads.
  TORCH_ARG(int64_t, d_model);
  TORCH_ARG(int64_t, n_heads);
  /// Key and value heads (grouped-query attention), a divisor of n_heads; n_heads unless given.
  TORCH_ARG(std::optional<int64_t>, n_kv_heads) = std::nullopt;
  /// A token sees itself and what came before.
  TORCH_ARG(bool, is_causal) = false;
  /// Biases in the projections.
  TORCH_ARG(bool, bias) = true;
  /// Dropout of the weights in training.
  TORCH_ARG(double, dropout) = 0.0;
  /// θ of the frequencies.
  TORCH_ARG(double, base) = 10000.0;
  /// Pairs (2i, 2i + 1); false: (i, i + rotary_dim / 2).
  TORCH_ARG(bool, interleaved) = true;
  /// Channels of a head that are rotated, even; all unless given.
  TORCH_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
};

/// Self-attention on rotated queries and keys (RoPE; Su et al. 2021, arXiv:2104.09864), by torch's
/// scaled_dot_product_attention. Parameters: query_proj, key_proj, value_proj, out_proj.
class POSENC_API RoPEAttentionImpl : public torch::nn::Cloneable<RoPEAttentionImpl> {
 public:
  RoPEAttentionImpl(int64_t d_model, int64_t n_heads)
      : RoPEAttentionImpl(RoPEAttentionOptions(d_model, n_heads)) {}
  explicit RoPEAttentionImpl(RoPEAttentionOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// \param x (B, L, d_model). The others as in AttentionInputs. With is_causal a token sees what
  /// came before it in the sequence,
  ///   whatever its position_ids.
  /// \return (B, L, d_model). A token that may see none gets out_proj of zeros: not NaN, not the
  /// mean.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = std::nullopt,
                     const std::optional<at::Tensor>& attn_bias = std::nullopt,
                     const std::optional<at::Tensor>& key_padding_mask = std::nullopt,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  /// The same with keys and values of earlier calls; x's are added to the cache. Keys are cached
  /// rotated.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache,
                            const AttentionInputs& inputs = {});

  RoPEAttentionOptions options;
  /// Radians per position; not a tensor, so that no state dict holds it and no cast rounds it.
  std::vector<double> inv_freq;
  torch::nn::Linear query_proj{nullptr}, key_proj{nullptr}, value_proj{nullptr}, out_proj{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {3, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {4, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {5, torch::nn::AnyValue(int64_t(0))})

 private:
  at::Tensor run(const at::Tensor& x, KVCache* cache, const AttentionInputs& inputs);
};
TORCH_MODULE(RoPEAttention);

}  // namespace posenc::nn
