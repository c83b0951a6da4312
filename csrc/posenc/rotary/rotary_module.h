#pragma once

#include <posenc/rotary/rotary.h>
#include <posenc/rotary/scaling.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <variant>

namespace posenc::nn {

/// Frequencies as numbers, or as a float64 tensor (n), (B, 1, n) or (1, H, n).
using InvFreq = std::variant<at::Tensor, std::vector<double>>;

/// Options of RotaryPositionalEmbedding.
///
/// \code
/// RotaryPositionalEmbedding rope(RotaryPositionalEmbeddingOptions(/*d_model=*/64).base(500000));
/// \endcode
struct POSENC_API RotaryPositionalEmbeddingOptions {
  /* implicit */ RotaryPositionalEmbeddingOptions(int64_t d_model) : d_model_(d_model) {}

  /// Channels of one head, the last axis of the input.
  TORCH_ARG(int64_t, d_model);
  /// The length that the model was made for. RoPE itself has no limit; kept for the article's
  /// signature and for scaling.
  TORCH_ARG(int64_t, max_seq_len) = 5000;
  /// θ of the frequencies θ^(−2i/rotary_dim).
  TORCH_ARG(double, base) = 10000.0;
  /// Pairs (2i, 2i + 1); false: (i, i + rotary_dim / 2).
  TORCH_ARG(bool, interleaved) = true;
  /// The layout to write, where it differs from the one to read (DeepSeek-V3 reads pairs, writes
  /// halves).
  TORCH_ARG(std::optional<bool>, interleaved_out) = std::nullopt;
  /// Channels that are rotated (partial RoPE), even. Default: all from rotary_start on.
  TORCH_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
  /// The first rotated channel.
  TORCH_ARG(int64_t, rotary_start) = 0;
  /// For each frequency the axis of position_ids that it reads. Default: one axis.
  TORCH_ARG(std::optional<std::vector<int64_t>>, axes) = std::nullopt;
  /// Turns by the negative angle (NanoChat).
  TORCH_ARG(bool, inverse) = false;
  /// The axis of the input that is time.
  TORCH_ARG(int64_t, seq_dim) = 1;
  /// Scales the rotated channels. Default: what the scaling says, else 1.
  TORCH_ARG(std::optional<double>, attention_factor) = std::nullopt;
  /// How frequencies are stretched past the trained length; its lengths default to max_seq_len.
  TORCH_ARG(RopeScaling, scaling) = RopeScaling();

 public:
  /// The RoPE that a model's configuration describes (config.json as a dictionary): current and
  /// legacy spellings, parameters nested by type of layer, the sections of multi-axis models, and
  /// by its `model_type` the layout that the model's code uses. \param layer_type the entry to use
  /// where types of layers differ. \throws c10::ValueError naming key, expectation and value.
  static RotaryPositionalEmbeddingOptions from_dict(
      const RopeDict& config, const std::optional<std::string>& layer_type = std::nullopt);
  /// A configuration that from_dict reads as these options.
  RopeDict to_dict() const;
  /// The keys of a configuration that from_dict reads.
  static const std::vector<std::string>& dict_keys();

  /// Throws ValueError naming `where`, the option, what was expected and what came.
  void check(const char* where = "RotaryPositionalEmbedding") const;
  /// The rotated width: rotary_dim or its default; where a share of the head gives an odd number,
  /// the next even one, as in transformers.
  int64_t width() const;
  /// The layout to read: the scaling's, where its dictionary names one.
  bool reads_pairs() const;
  /// The axes option, else those of the scaling's sections, else none.
  std::vector<int64_t> resolved_axes() const;
  /// θ: the scaling's, where it names one.
  double theta() const;
  /// The frequencies, float64, radians per position, and the attention factor.
  RopeFrequencies frequencies() const;

 private:
  /// The width in the exponent of the frequencies: not rounded up.
  int64_t series_width() const;
};

/// Rotary position embedding as a module: options and frequencies, no parameter and no buffer. See
/// posenc::rotary_embedding.
class POSENC_API RotaryPositionalEmbeddingImpl
    : public torch::nn::Cloneable<RotaryPositionalEmbeddingImpl> {
 public:
  explicit RotaryPositionalEmbeddingImpl(int64_t d_model)
      : RotaryPositionalEmbeddingImpl(RotaryPositionalEmbeddingOptions(d_model)) {}
  explicit RotaryPositionalEmbeddingImpl(RotaryPositionalEmbeddingOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// \param x (B, L, H, d_model), or another rank with time at options.seq_dim.
  /// \param position_ids (L), (1, L), (B, L), with axes (A, B, L).
  /// \param offset tokens before this call.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0) const;

  /// Query and key, which may differ in their number of heads, by the same positions.
  std::pair<at::Tensor, at::Tensor> rotate(
      const at::Tensor& q, const at::Tensor& k,
      const std::optional<at::Tensor>& position_ids = std::nullopt, int64_t offset = 0) const;

  /// q and k inside a packed qkv, v passes bit for bit: (B, L, Hq + 2·Hk, d_model), or (B, L, 3, H,
  /// d_model). \param n_kv_heads Hk; default: a third of the heads. See rotary_embedding_qkv.
  at::Tensor rotate_packed(const at::Tensor& qkv, std::optional<int64_t> n_kv_heads = std::nullopt,
                           const std::optional<at::Tensor>& position_ids = std::nullopt,
                           int64_t offset = 0) const;

  /// The frequencies that a sequence of `length` tokens is rotated by; they depend on it for
  /// dynamic NTK and LongRoPE alone.
  std::vector<double> inv_freq_at(int64_t length) const;
  /// The same for each row of a batch, lengths (B): float64 (B, 1, n).
  at::Tensor inv_freq_at(const at::Tensor& lengths) const;

  /// Cached keys by `delta` positions: a pure rotation. See posenc::shift.
  /// \param inv_freq what the keys carry; needed where frequencies depend on the length (see
  /// inv_freq_at). \throws c10::ValueError for a layer of several position axes, whose keys no one
  /// number can move.
  at::Tensor shift(const at::Tensor& keys, const at::Tensor& delta,
                   const std::optional<InvFreq>& inv_freq = std::nullopt) const;
  at::Tensor shift(const at::Tensor& keys, int64_t delta,
                   const std::optional<InvFreq>& inv_freq = std::nullopt) const;

  /// Cached keys from `old_inv_freq` to `new_inv_freq`, by default this layer's. See
  /// posenc::re_rotate. \param old_attention_factor what the keys were scaled by; default: this
  /// layer's.
  at::Tensor re_rotate(const at::Tensor& keys, const InvFreq& old_inv_freq,
                       const std::optional<InvFreq>& new_inv_freq = std::nullopt,
                       const std::optional<at::Tensor>& position_ids = std::nullopt,
                       int64_t offset = 0,
                       std::optional<double> old_attention_factor = std::nullopt) const;

  /// The article's name; `seq_len`, where given, must be x's length.
  at::Tensor apply_rotary_pos_emb(const at::Tensor& x,
                                  std::optional<int64_t> seq_len = std::nullopt,
                                  int64_t offset = 0) const;

  RotaryPositionalEmbeddingOptions options;
  /// Not tensors, so that no cast of the module rounds them and no state dict holds them.
  RopeFrequencies frequencies;
  /// The axis that each frequency reads; empty for one axis.
  std::vector<int64_t> axes;

 private:
  at::OptionalIntArrayRef axes_ref() const;
  /// The layout that leaves forward: pairs or not.
  bool layout_out() const;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))})
};
TORCH_MODULE(RotaryPositionalEmbedding);

/// Options of LongSequenceRoPE.
struct POSENC_API LongSequenceRoPEOptions {
  /* implicit */ LongSequenceRoPEOptions(int64_t head_dim) : head_dim_(head_dim) {}
  /// Channels of one head.
  TORCH_ARG(int64_t, head_dim);
  /// Rows of one chunk, as the article cuts a long sequence.
  TORCH_ARG(int64_t, chunk_size) = 1024;
  TORCH_ARG(double, base) = 10000.0;
  TORCH_ARG(bool, interleaved) = true;
};

/// RoPE for long sequences, x (B, L, H, head_dim).
///
/// The article cuts the sequence into chunks so that its tables stay small. The operator here keeps
/// no table and works in blocks of 64 rows at any length, so whole and chunked are one computation:
/// the same bits, the same time, and a scratch of some kilobytes either way. `use_chunking` and
/// `chunk_size` are kept, and checked, for the article's signature.
class POSENC_API LongSequenceRoPEImpl : public torch::nn::Cloneable<LongSequenceRoPEImpl> {
 public:
  explicit LongSequenceRoPEImpl(int64_t head_dim)
      : LongSequenceRoPEImpl(LongSequenceRoPEOptions(head_dim)) {}
  explicit LongSequenceRoPEImpl(LongSequenceRoPEOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& x, bool use_chunking = true) const;

  LongSequenceRoPEOptions options;
  std::vector<double> inv_freq;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(true)})
};
TORCH_MODULE(LongSequenceRoPE);

}  // namespace posenc::nn
