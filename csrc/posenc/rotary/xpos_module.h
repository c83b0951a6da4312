#pragma once

#include <posenc/rotary/xpos.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>
#include <vector>

namespace posenc::nn {

/// Options of XPosRotaryEmbedding.
struct POSENC_API XPosRotaryEmbeddingOptions {
  /* implicit */ XPosRotaryEmbeddingOptions(int64_t head_dim) : head_dim_(head_dim) {}

  /// Channels of one head, the last axis of the input.
  TORCH_ARG(int64_t, head_dim);
  /// θ of the frequencies θ^(−2i/rotary_dim).
  TORCH_ARG(double, base) = 10000.0;
  /// Positions in which the scale of pair i goes down by ζ_i.
  TORCH_ARG(double, scale_base) = 512.0;
  /// The position of scale 1, one number for a model's life: cached keys hold it.
  TORCH_ARG(double, centre) = 0.0;
  /// γ of ζ_i = (2i + γ·dim) / ((1 + γ)·dim).
  TORCH_ARG(double, gamma) = 0.4;
  /// Pairs (2i, 2i + 1); false: (i, i + rotary_dim / 2).
  TORCH_ARG(bool, interleaved) = true;
  /// Channels that are rotated, even. Default: all from rotary_start on.
  TORCH_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
  /// The first rotated channel.
  TORCH_ARG(int64_t, rotary_start) = 0;
  /// The axis of the input that is time.
  TORCH_ARG(int64_t, seq_dim) = 1;

 public:
  /// Throws ValueError naming the option, what was expected and what came.
  void check() const;
  /// The rotated width: rotary_dim or its default.
  int64_t width() const;
  /// The frequencies, float64, radians per position.
  std::vector<double> inv_freq() const;
};

/// xPos as a module: options and frequencies, no parameter and no buffer. See
/// posenc::xpos_embedding.
class POSENC_API XPosRotaryEmbeddingImpl : public torch::nn::Cloneable<XPosRotaryEmbeddingImpl> {
 public:
  explicit XPosRotaryEmbeddingImpl(int64_t head_dim)
      : XPosRotaryEmbeddingImpl(XPosRotaryEmbeddingOptions(head_dim)) {}
  explicit XPosRotaryEmbeddingImpl(XPosRotaryEmbeddingOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// \param x queries, or keys with is_key, (B, L, H, head_dim) or as options.seq_dim says.
  /// \param position_ids (L), (1, L) or (B, L). \param offset tokens before this call.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0, bool is_key = false);

  /// Query and key, which may differ in their number of heads, by the same positions.
  std::pair<at::Tensor, at::Tensor> rotate(
      const at::Tensor& q, const at::Tensor& k,
      const std::optional<at::Tensor>& position_ids = std::nullopt, int64_t offset = 0);

  XPosRotaryEmbeddingOptions options;
  std::vector<double> inv_freq;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))}, {3, torch::nn::AnyValue(false)})
};
TORCH_MODULE(XPosRotaryEmbedding);

}  // namespace posenc::nn
