#pragma once

#include <posenc/rotary/learned_rotary.h>
#include <posenc/rotary/rotary_module.h>

namespace posenc::nn {

/// Options of LearnedRotaryEmbedding: those of RotaryPositionalEmbedding, which give the initial
/// frequencies, and how they are learned. A scaling whose frequencies depend on the length is
/// refused.
struct POSENC_API LearnedRotaryEmbeddingOptions : RotaryPositionalEmbeddingOptions {
  /* implicit */ LearnedRotaryEmbeddingOptions(int64_t head_dim)
      : RotaryPositionalEmbeddingOptions(head_dim) {}

  /// One set of frequencies for each of so many heads. Default: one set for all.
  TORCH_ARG(std::optional<int64_t>, n_heads) = std::nullopt;
  /// "log": f·exp(alpha), alpha trained from 0; "direct": the frequencies themselves.
  TORCH_ARG(std::string, parametrisation) = "log";

 public:
  /// Throws ValueError naming `where`, the option, what was expected and what came.
  void check(const char* where = "LearnedRotaryEmbedding") const;
};

/// RoPE with trained frequencies. The parameter, `alpha` or `freqs` by the parametrisation, is (n)
/// or (n_heads, n). It is never a half type: a cast of the module to one leaves it float32, since a
/// rounded frequency turns far tokens by whole radians. See posenc::learned_inv_freq.
class POSENC_API LearnedRotaryEmbeddingImpl
    : public torch::nn::Cloneable<LearnedRotaryEmbeddingImpl> {
 public:
  explicit LearnedRotaryEmbeddingImpl(int64_t head_dim)
      : LearnedRotaryEmbeddingImpl(LearnedRotaryEmbeddingOptions(head_dim)) {}
  explicit LearnedRotaryEmbeddingImpl(LearnedRotaryEmbeddingOptions options_);

  void reset() override;
  /// Back to the initial frequencies.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  using torch::nn::Module::to;

  /// The current frequencies, float64 (n) or (1, n_heads, n).
  at::Tensor frequencies() const;

  /// \param x (B, L, H, head_dim), or another rank with time at options.seq_dim; 4-D with n_heads.
  /// \param position_ids (L), (1, L), (B, L), with axes (A, B, L).
  /// \param offset tokens before this call.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  /// Query and key by the same positions; with n_heads both have so many heads.
  std::pair<at::Tensor, at::Tensor> rotate(
      const at::Tensor& q, const at::Tensor& k,
      const std::optional<at::Tensor>& position_ids = std::nullopt, int64_t offset = 0);

  LearnedRotaryEmbeddingOptions options;
  /// The initial frequencies and the factor on cos and sin; not tensors.
  RopeFrequencies initial;
  /// The axis that each frequency reads; empty for one axis.
  std::vector<int64_t> axes;
  /// The parameter; the one that the parametrisation does not use is undefined.
  at::Tensor alpha, freqs;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))})
};
TORCH_MODULE(LearnedRotaryEmbedding);

}  // namespace posenc::nn
