#pragma once

#include <ATen/core/Tensor.h>
#include <posenc/core/macros.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace posenc::nn {

/// Options of `TransformerEmbedding`.
struct POSENC_API TransformerEmbeddingOptions {
  TransformerEmbeddingOptions(int64_t vocab_size, int64_t d_model);

  /// Rows of the token table.
  TORCH_ARG(int64_t, vocab_size);
  /// Channels of the output.
  TORCH_ARG(int64_t, d_model);
  /// The length that the model is meant for. No limit: the encoding is computed
  /// for any position. Default: 5000.
  TORCH_ARG(int64_t, max_len) = 5000;
  /// The row that stays zero and gets no gradient; negative counts from the
  /// end, as in torch::nn::Embedding. Default: none.
  TORCH_ARG(std::optional<int64_t>, padding_idx) = std::nullopt;
  /// Factor on the token embedding. Default: sqrt(d_model); 1 switches it off.
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  /// Wavelengths run from 2 pi to 2 pi base. Default: 10000.
  TORCH_ARG(double, base) = 10000.;
  /// [sin, cos, sin, cos, ...], else all sines, then all cosines. Default: true.
  TORCH_ARG(bool, interleaved) = true;
  /// "standard" or "half_minus_one", see `sinusoidal_inv_freq`.
  TORCH_ARG(std::string, spacing) = "standard";
};

/// Token embedding times sqrt(d_model) plus the sinusoidal encoding; child
/// `token_embedding` (torch::nn::Embedding).
class POSENC_API TransformerEmbeddingImpl : public torch::nn::Cloneable<TransformerEmbeddingImpl> {
 public:
  TransformerEmbeddingImpl(int64_t vocab_size, int64_t d_model)
      : TransformerEmbeddingImpl(TransformerEmbeddingOptions(vocab_size, d_model)) {}
  explicit TransformerEmbeddingImpl(const TransformerEmbeddingOptions& options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// `input_ids` (B, L) or (L); the rest as `embed_tokens`.
  at::Tensor forward(const at::Tensor& input_ids,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  TransformerEmbeddingOptions options;
  torch::nn::Embedding token_embedding = nullptr;
  /// Radians per position.
  std::vector<double> inv_freq;
  /// The factor in use.
  double scale = 1.;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))})
};
TORCH_MODULE(TransformerEmbedding);

}  // namespace posenc::nn
