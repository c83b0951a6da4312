#pragma once

#include <posenc/rotary/axial.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <utility>

namespace posenc::nn {

/// Options of AxialRotaryEmbedding.
///
/// \code
/// AxialRotaryEmbedding rope(AxialRotaryEmbeddingOptions(/*head_dim=*/80).arrangement("half_hw"));
/// \endcode
struct POSENC_API AxialRotaryEmbeddingOptions {
  /* implicit */ AxialRotaryEmbeddingOptions(int64_t head_dim) : head_dim_(head_dim) {}

  /// Channels of one head, the last axis of the input.
  TORCH_ARG(int64_t, head_dim);
  /// Which frequency reads which axis, by name; see axial_frequencies.
  TORCH_ARG(std::string, arrangement) = "half_hw";
  /// θ of the frequencies.
  TORCH_ARG(double, base) = 10000.0;
  /// Multiplies every position; it becomes part of the frequencies.
  TORCH_ARG(double, scale) = 1.0;
  /// Added to every position before it is scaled (Llama 4: 1).
  TORCH_ARG(int64_t, offset) = 0;
  /// Tokens at the beginning and at the end that have no position and pass bit for bit.
  TORCH_ARG(int64_t, n_prefix) = 0;
  TORCH_ARG(int64_t, n_suffix) = 0;
  /// The axis of the input that is time.
  TORCH_ARG(int64_t, seq_dim) = 1;

 public:
  /// Throws ValueError naming the option, what was expected and what came.
  void check() const;
  AxialFrequencies frequencies() const;
};

/// RoPE over the rows and columns of a grid: options and frequencies, no parameter and no buffer.
/// See axial_rotary_embedding.
class POSENC_API AxialRotaryEmbeddingImpl : public torch::nn::Cloneable<AxialRotaryEmbeddingImpl> {
 public:
  explicit AxialRotaryEmbeddingImpl(int64_t head_dim)
      : AxialRotaryEmbeddingImpl(AxialRotaryEmbeddingOptions(head_dim)) {}
  explicit AxialRotaryEmbeddingImpl(AxialRotaryEmbeddingOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// \param x (B, L, H, head_dim), or another rank with time at options.seq_dim.
  /// \param position_ids (A, L) or (A, B, L), of the tokens between prefix and suffix.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& position_ids) const;

  /// Query and key, which may differ in their number of heads, by the same positions.
  std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& position_ids) const;

  AxialRotaryEmbeddingOptions options;
  AxialFrequencies frequencies;
};
TORCH_MODULE(AxialRotaryEmbedding);

/// Options of MixedRotaryEmbedding.
struct POSENC_API MixedRotaryEmbeddingOptions {
  MixedRotaryEmbeddingOptions(int64_t head_dim, int64_t n_heads)
      : head_dim_(head_dim), n_heads_(n_heads) {}

  /// Channels of one head; a multiple of 4.
  TORCH_ARG(int64_t, head_dim);
  TORCH_ARG(int64_t, n_heads);
  /// θ of the first frequencies, from which training sets out.
  TORCH_ARG(double, base) = 10.0;
  /// Frequencies for each head; false: shared by all heads, a learned linear map of the
  /// coordinates.
  TORCH_ARG(bool, per_head) = true;
  /// Pairs (2i, 2i + 1); false: (i, i + head_dim / 2).
  TORCH_ARG(bool, interleaved) = true;
  /// Tokens at the beginning and at the end that have no position and pass bit for bit.
  TORCH_ARG(int64_t, n_prefix) = 0;
  TORCH_ARG(int64_t, n_suffix) = 0;
  /// The axis of the input that is time.
  TORCH_ARG(int64_t, seq_dim) = 1;

 public:
  void check() const;
};

/// RoPE-Mixed: learned frequencies, whose angle is the sum over both axes. Parameter `freqs`,
/// (2, n_heads, head_dim / 2) or (2, head_dim / 2): freqs[a] multiplies position_ids[a]. See
/// mixed_rotary_embedding.
class POSENC_API MixedRotaryEmbeddingImpl : public torch::nn::Cloneable<MixedRotaryEmbeddingImpl> {
 public:
  MixedRotaryEmbeddingImpl(int64_t head_dim, int64_t n_heads)
      : MixedRotaryEmbeddingImpl(MixedRotaryEmbeddingOptions(head_dim, n_heads)) {}
  explicit MixedRotaryEmbeddingImpl(MixedRotaryEmbeddingOptions options_);

  void reset() override;
  /// Directions at random, magnitudes as mixed_rotary_freqs gives them.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// \param x (B, L, H, head_dim), with time at options.seq_dim.
  /// \param position_ids (2, L) or (2, B, L), of the tokens between prefix and suffix.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& position_ids) const;

  /// Query and key by the same positions; per_head, they have the same number of heads.
  std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& position_ids) const;

  MixedRotaryEmbeddingOptions options;
  at::Tensor freqs;
};
TORCH_MODULE(MixedRotaryEmbedding);

}  // namespace posenc::nn
