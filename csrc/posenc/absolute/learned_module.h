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

namespace posenc::nn {

/// Options of `LearnedPositionalEncoding`.
struct POSENC_API LearnedPositionalEncodingOptions {
  LearnedPositionalEncodingOptions(int64_t max_len, int64_t d_model);

  /// Rows of the table: positions 0 ... max_len-1 exist.
  TORCH_ARG(int64_t, max_len);
  /// Channels of the input.
  TORCH_ARG(int64_t, d_model);
  /// The time axis of the input. Default: 1; 0 for sequence-first input.
  TORCH_ARG(int64_t, seq_dim) = 1;
};

/// Adds rows of a trained table, child `positional_embeddings`
/// (torch::nn::Embedding, normal, standard deviation 0.02).
class POSENC_API LearnedPositionalEncodingImpl
    : public torch::nn::Cloneable<LearnedPositionalEncodingImpl> {
 public:
  LearnedPositionalEncodingImpl(int64_t max_len, int64_t d_model)
      : LearnedPositionalEncodingImpl(LearnedPositionalEncodingOptions(max_len, d_model)) {}
  explicit LearnedPositionalEncodingImpl(const LearnedPositionalEncodingOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// `x` (B, L, d_model), or as `seq_dim` says; the rest as `add_positions`.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  LearnedPositionalEncodingOptions options;
  torch::nn::Embedding positional_embeddings = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))})
};
TORCH_MODULE(LearnedPositionalEncoding);

}  // namespace posenc::nn
