#pragma once

#include <posenc/attention/attention_layer.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace posenc::nn {

/// Options of ALiBiAttention.
///
/// \code
/// ALiBiAttention attention(ALiBiAttentionOptions(/*d_model=*/512, /*n_heads=*/8).is_causal(true));
/// \endcode
struct POSENC_API ALiBiAttentionOptions {
  ALiBiAttentionOptions(int64_t d_model, int64_t n_heads) : d_model_(d_model), n_heads_(n_heads) {}

  /// Channels of input and output, a multiple of n_heads.
  TORCH_ARG(int64_t, d_model);
  /// Query heads, any number.
  TORCH_ARG(int64_t, n_heads);
  /// The article's name. No limit: ALiBi has none.
  TORCH_ARG(int64_t, max_seq_len) = 2048;
  /// Key and value heads (grouped-query attention), a divisor of n_heads; n_heads unless given.
  TORCH_ARG(std::optional<int64_t>, n_kv_heads) = std::nullopt;
  /// A token sees itself and what came before.
  TORCH_ARG(bool, is_causal) = false;
  /// Biases in the projections.
  TORCH_ARG(bool, bias) = true;
  /// Dropout of the weights in training; then the dense formula is used.
  TORCH_ARG(double, dropout) = 0.0;
};

/// Self-attention with linear biases (ALiBi; Press et al. 2022, arXiv:2108.12409). Parameters:
/// query_proj, key_proj, value_proj, out_proj. Without a causal mask the bias is symmetric,
/// −slope·|i − j|.
class POSENC_API ALiBiAttentionImpl : public torch::nn::Cloneable<ALiBiAttentionImpl> {
 public:
  ALiBiAttentionImpl(int64_t d_model, int64_t n_heads)
      : ALiBiAttentionImpl(ALiBiAttentionOptions(d_model, n_heads)) {}
  explicit ALiBiAttentionImpl(ALiBiAttentionOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// \param x (B, L, d_model). The others as in AttentionInputs.
  /// \return (B, L, d_model). A token that may see none gets out_proj of zeros.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = std::nullopt,
                     const std::optional<at::Tensor>& attn_bias = std::nullopt,
                     const std::optional<at::Tensor>& key_padding_mask = std::nullopt,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  /// The same with keys and values of earlier calls; x's are added to the cache.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache,
                            const AttentionInputs& inputs = {});

  ALiBiAttentionOptions options;
  /// One per query head; not a tensor, so that no state dict holds it and no cast rounds it.
  std::vector<double> slopes;
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
TORCH_MODULE(ALiBiAttention);

}  // namespace posenc::nn
