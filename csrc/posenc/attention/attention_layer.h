#pragma once

// What the attention layers share: projections, heads, masks.

#include <posenc/attention/kv_cache.h>
#include <torch/nn/modules/linear.h>

#include <optional>

namespace posenc::nn {

/// The optional inputs of an attention layer.
struct POSENC_API AttentionInputs {
  /// Broadcasts to (B, H, L, S): 0 blocks, anything else keeps (bool, integer or float).
  std::optional<at::Tensor> mask;
  /// Added to the scores, broadcasts to (B, H, L, S).
  std::optional<at::Tensor> attn_bias;
  /// (B, S) with S = cached + new tokens: nonzero marks real tokens. Padding is not attended to,
  /// and positions count real tokens.
  std::optional<at::Tensor> key_padding_mask;
  /// (L), (1, L) or (B, L) of the new tokens. Default: they continue the cache, counted by
  /// key_padding_mask where that is given.
  std::optional<at::Tensor> position_ids;
  /// Tokens before this call that are not in the cache.
  int64_t offset = 0;
};

namespace detail {

/// Shapes of a layer, checked.
struct AttentionShape {
  int64_t d_model, n_heads, n_kv_heads, head_dim;

  static AttentionShape of(const char* op, int64_t d_model, int64_t n_heads,
                           std::optional<int64_t> n_kv_heads, double dropout);
};

/// What is seen and where it stands, from the inputs of one call.
struct AttentionView {
  at::Tensor allowed;  ///< bool, broadcasts to (B, H, L, S), from mask and padding; undefined: all
  at::Tensor k_positions;  ///< (1 or B, S), or undefined: 0 … S − 1
  at::Tensor q_positions;  ///< (1 or B, L), its last L
};

/// (B, L, heads·head_dim) as (B, heads, L, head_dim): a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
at::Tensor join_heads(const at::Tensor& x);

/// x's shape, attn_bias's dtype, and key_padding_mask's shape against the keys there are.
void check_layer_inputs(const char* op, const at::Tensor& x, int64_t d_model, int64_t cached,
                        const AttentionInputs& inputs);

/// The positions of the new tokens, (1 or B, L): position_ids; else what key_padding_mask counts;
/// else undefined.
at::Tensor new_positions(const at::Tensor& x, const AttentionInputs& inputs);

/// mask and key_padding_mask as one bool tensor.
at::Tensor allowed_keys(const char* op, const AttentionInputs& inputs, int64_t batch, int64_t heads,
                        int64_t q_len, int64_t k_len, const at::Device& device);

/// Keys and values that no query may see, replaced by 0: what padding holds must not matter, NaN
/// included.
void zero_unseen(const at::Tensor& allowed, at::Tensor& k, at::Tensor& v);

/// softmax(scale·q·kᵀ + bias)·v with the weights there, for what the fused operators do not take:
/// dropout, or a bias on top. A row with no allowed key is 0, in value and gradient.
at::Tensor dense_attention(const at::Tensor& q, at::Tensor k, at::Tensor v, const at::Tensor& bias,
                           const at::Tensor& allowed, double dropout, bool training);

}  // namespace detail
}  // namespace posenc::nn
