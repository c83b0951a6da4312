#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>
#include <posenc/rotary/rope_dict.h>

#include <optional>

namespace posenc {

/// How a model stretches RoPE past its trained length, and how it splits the frequencies among
/// axes: the `rope_parameters` / `rope_scaling` dictionary of a configuration, as checked numbers.
/// Every key is consumed or refused.
struct POSENC_API RopeScaling {
  /// default, linear, dynamic, ntk, yarn, deepseek_yarn, longrope, llama3 or proportional.
  std::string type = "default";
  /// θ, where the dictionary gives it.
  std::optional<double> rope_theta;
  /// Rotated share of the head, where the dictionary gives it.
  std::optional<double> partial_rotary_factor;
  /// s: how many times the trained length is to be reached. YaRN and LongRoPE: from the lengths
  /// where missing.
  std::optional<double> factor;
  /// L0, the trained length.
  std::optional<int64_t> original_max_position_embeddings;
  /// The longest length, where the dictionary gives it beside the model's.
  std::optional<int64_t> max_position_embeddings;
  /// A, which scales cos and sin; given here it is used as it is.
  std::optional<double> attention_factor;
  /// NTK-alpha (HunYuan): a static change of θ, written as type dynamic.
  std::optional<double> alpha;
  /// NTK (vLLM): the exponent b of its mixed form.
  std::optional<double> mixed_b;
  /// YaRN: turns within L0 above which a frequency stays (fast) and below which it is divided
  /// (slow).
  double beta_fast = 32, beta_slow = 1;
  /// YaRN: the two numbers whose ratio is A (DeepSeek).
  std::optional<double> mscale, mscale_all_dim;
  /// YaRN: whole numbers for the bounds of the ramp.
  bool truncate = true;
  /// YaRN (vLLM): multiplies A; the weight of the kept frequencies; false: A is attn_factor alone.
  std::optional<double> attn_factor, extrapolation_factor;
  std::optional<bool> apply_yarn_scaling;
  /// LongRoPE: one factor a frequency, for sequences up to L0 and beyond.
  std::vector<double> short_factor, long_factor;
  /// LongRoPE (PhiMoE): A for sequences up to L0 and beyond; the two must be equal.
  std::optional<double> short_mscale, long_mscale;
  /// Llama 3: turns within L0 below which a frequency is divided, above which it stays.
  std::optional<double> low_freq_factor, high_freq_factor;
  /// M-RoPE: how many frequencies read each axis (Qwen2-VL: time, height, width), in one run an
  /// axis or interleaved (Qwen3-VL). XD-RoPE (HunYuan-VL): the same for its axes.
  std::vector<int64_t> mrope_section, xdrope_section;
  std::optional<bool> mrope_interleaved;
  /// Pairs (2i, 2i + 1), where the dictionary says so.
  std::optional<bool> interleaved;
  /// β of the queries' temperature 1 + β·ln(1 + ⌊p/L0⌋) (Ministral 3, Mistral 4).
  std::optional<double> llama_4_scaling_beta;

  /// Reads a flat dictionary, current and legacy spellings (`type`, su, mrope, xdrope). ValueError
  /// naming key and value for an unknown key or type, a missing key, a value of another kind, and
  /// numbers that contradict each other.
  static RopeScaling from_dict(const RopeDict& dict);
  /// The reverse: `from_dict(to_dict())` is the same.
  RopeDict to_dict() const;

  /// Checks what needs the width and the model's own length: list lengths, L0.
  void check(int64_t dim, std::optional<int64_t> max_position_embeddings = std::nullopt) const;

  /// True for dynamic NTK and LongRoPE, whose frequencies depend on the sequence's length.
  bool depends_on_length() const;
  bool is_yarn() const { return type == "yarn" || type == "deepseek_yarn"; }
};

/// Frequencies and the factor on cos and sin.
struct RopeFrequencies {
  std::vector<double> inv_freq;  ///< radians per position, float64
  double attention_factor = 1.0;
  /// LongRoPE: the frequencies beyond the trained length; inv_freq holds those within.
  std::vector<double> long_inv_freq;
  /// L0 of a scaling that depends on the length, else 0.
  int64_t trained_length = 0;
  /// The width in the exponent of θ: odd where a share of the head gave an odd number.
  int64_t dim = 0;
};

/// Frequencies of a rotary width under a scaling; for a scaling that depends on the length, those
/// of a sequence within the trained length.
///
/// \param dim rotated channels; for `proportional` the whole head. An odd width (a share of the
/// head that gives one, as GLM-4.5's 21) has (dim + 1) / 2 frequencies; YaRN and LongRoPE refuse
/// it. \param base θ. \param max_position_embeddings the model's longest length, from which YaRN
/// and LongRoPE take a missing factor.
POSENC_API RopeFrequencies
rope_frequencies(int64_t dim, double base, const RopeScaling& scaling,
                 std::optional<int64_t> max_position_embeddings = std::nullopt);

/// \defgroup of_length Frequencies that depend on the length
/// Chosen by a sequence's own length, never by what came before, so that a short prompt after a
/// long one is as before. The results, float64 (B, 1, n), are for the tensor overload of
/// rotary_embedding. Operators: they trace, script and export.
/// @{

/// The number of positions that each row reaches: the largest position + 1.
/// \param position_ids as rotary_embedding takes them; without, offset + length.
/// \return float64 (B), or (1) where the rows are alike.
POSENC_API at::Tensor rope_lengths(const at::Tensor& x,
                                   const std::optional<at::Tensor>& position_ids,
                                   c10::SymInt offset, int64_t seq_dim = 1);

/// Dynamic NTK: θ grows with the length over the trained one, and not below it.
/// \param lengths (B). \param inv_freq the n frequencies of θ. \param factor s. \param
/// trained_length L0. \param dim the width in the exponent of θ, 2n or the odd 2n − 1; default: 2n.
POSENC_API at::Tensor dynamic_ntk_inv_freq(const at::Tensor& lengths, at::ArrayRef<double> inv_freq,
                                           double factor, int64_t trained_length,
                                           std::optional<int64_t> dim = std::nullopt);

/// LongRoPE: one set of frequencies for rows within the trained length, another beyond.
POSENC_API at::Tensor longrope_inv_freq(const at::Tensor& lengths,
                                        at::ArrayRef<double> short_inv_freq,
                                        at::ArrayRef<double> long_inv_freq, int64_t trained_length);
/// @}

/// YaRN's factor 0.1·mscale·ln(scale) + 1, and 1 where scale ≤ 1 (Peng et al. 2023,
/// arXiv:2309.00071).
POSENC_API double yarn_mscale(double scale, double mscale = 1.0);

}  // namespace posenc
