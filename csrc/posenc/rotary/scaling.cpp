// The formulas: dictionary of numbers → frequencies and attention factor. Reading the dictionary:
// scaling_dict.cpp.

#include <c10/util/Exception.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/scaling.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace posenc {
namespace {

// s where the dictionary leaves it to the lengths.
double implied_factor(const RopeScaling& s, std::optional<int64_t> max_position) {
  if (s.factor.has_value()) {
    return *s.factor;
  }
  TORCH_CHECK_VALUE(max_position.has_value() && s.original_max_position_embeddings.has_value(),
                    "rope scaling ", s.type,
                    ": expected factor, or max_position_embeddings and "
                    "original_max_position_embeddings to take it from");
  return static_cast<double>(*max_position) /
         static_cast<double>(*s.original_max_position_embeddings);
}

// θ^(−2i/dim), also for an odd dim, whose last pair is rounded up.
std::vector<double> series(int64_t dim, double base) {
  TORCH_CHECK_VALUE(dim > 0 && base > 0 && std::isfinite(base),
                    "rope_frequencies: expected dim > 0 and a finite base > 0, got ", dim, " and ",
                    base);
  if (dim % 2 == 0) {
    return rope_inv_freq(dim, base);
  }
  std::vector<double> result;
  for (int64_t i = 0; i < (dim + 1) / 2; ++i) {
    result.push_back(std::pow(base, -static_cast<double>(2 * i) / static_cast<double>(dim)));
  }
  return result;
}

int64_t trained_length(const RopeScaling& s, std::optional<int64_t> max_position) {
  if (s.original_max_position_embeddings.has_value()) {
    return *s.original_max_position_embeddings;
  }
  TORCH_CHECK_VALUE(
      max_position.has_value(), "rope scaling ", s.type,
      ": expected original_max_position_embeddings, or max_position_embeddings in its place");
  return *max_position;
}

// Dynamic NTK: θ grows so that the lowest frequency is divided by the length over L0 (times s, less
// s − 1).
double ntk_base(double base, int64_t dim, double stretch) {
  return base * std::pow(stretch, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

double yarn_attention_factor(const RopeScaling& s, double factor) {
  const double extra = s.attn_factor.value_or(1.0);
  if (s.attention_factor.has_value()) {
    return *s.attention_factor * extra;
  }
  if (!s.apply_yarn_scaling.value_or(true)) {
    return extra;
  }
  if (s.type == "deepseek_yarn") {  // in vLLM a missing mscale_all_dim is 0, not "no ratio"
    return yarn_mscale(factor, s.mscale.value_or(1.0)) /
           yarn_mscale(factor, s.mscale_all_dim.value_or(0.0)) * extra;
  }
  if (s.mscale.value_or(0) != 0 && s.mscale_all_dim.value_or(0) != 0) {
    return yarn_mscale(factor, *s.mscale) / yarn_mscale(factor, *s.mscale_all_dim) * extra;
  }
  return yarn_mscale(factor) * extra;
}

// vLLM's fixed NTK: θ·s with every frequency divided by s^(2/dim), or the mixed form of its b.
std::vector<double> ntk(int64_t dim, double base, const RopeScaling& s) {
  const double n = static_cast<double>(dim) / 2;
  std::vector<double> result = series(dim, s.mixed_b ? base : base * *s.factor);
  for (size_t i = 0; i < result.size(); ++i) {
    if (s.mixed_b.has_value()) {
      const double a = std::log(*s.factor) / std::pow(n, *s.mixed_b);
      result[i] /= std::exp(a * std::pow(static_cast<double>(i + 1), *s.mixed_b));
    } else {
      result[i] /= std::pow(*s.factor, 1 / n);
    }
  }
  return result;
}

RopeFrequencies yarn(int64_t dim, double base, const RopeScaling& s,
                     std::optional<int64_t> max_position) {
  const double factor = implied_factor(s, max_position);
  const double trained = static_cast<double>(trained_length(s, max_position));
  // The (real) index of the frequency that turns `turns` times within the trained length.
  const auto index_of = [&](double turns) {
    return static_cast<double>(dim) * std::log(trained / (2 * std::numbers::pi * turns)) /
           (2 * std::log(base));
  };
  double low = index_of(s.beta_fast), high = index_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high,
                  static_cast<double>(
                      dim - 1));  // the models clamp to dim − 1, though the last index is dim/2 − 1
  if (low == high) {
    high += 0.001;
  }
  RopeFrequencies result{rope_inv_freq(dim, base), 1.0, {}, 0};
  for (size_t i = 0; i < result.inv_freq.size(); ++i) {
    const double keep =
        (1.0 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0)) *
        s.extrapolation_factor.value_or(1.0);
    const double f = result.inv_freq[i];
    result.inv_freq[i] = f / factor * (1 - keep) + f * keep;
  }
  result.attention_factor = yarn_attention_factor(s, factor);
  return result;
}

RopeFrequencies llama3(int64_t dim, double base, const RopeScaling& s,
                       std::optional<int64_t> max_position) {
  const double trained = static_cast<double>(trained_length(s, max_position));
  const double low = *s.low_freq_factor, high = *s.high_freq_factor;
  RopeFrequencies result{series(dim, base), 1.0, {}, 0};
  for (double& f : result.inv_freq) {
    const double turns = trained * f / (2 * std::numbers::pi);
    if (turns < low) {
      f /= *s.factor;
    } else if (turns <= high) {
      const double t = (turns - low) / (high - low);
      f = (1 - t) * f / *s.factor + t * f;
    }
  }
  return result;
}

// LongRoPE: each frequency divided by its own searched factor (Ding et al. 2024, arXiv:2402.13753).
std::vector<double> divided(std::vector<double> inv_freq, const std::vector<double>& factors) {
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] /= factors[i];
  }
  return inv_freq;
}

double longrope_attention_factor(const RopeScaling& s, std::optional<int64_t> max_position) {
  if (s.attention_factor.has_value() || s.short_mscale.has_value()) {
    return s.attention_factor.value_or(s.short_mscale.value_or(1.0));
  }
  const double factor = implied_factor(s, max_position);
  return factor <= 1
             ? 1.0
             : std::sqrt(1 + std::log(factor) /
                                 std::log(static_cast<double>(trained_length(s, max_position))));
}

}  // namespace

double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

bool RopeScaling::depends_on_length() const {
  return type == "longrope" || (type == "dynamic" && !alpha.has_value());
}

RopeFrequencies rope_frequencies(int64_t dim, double base, const RopeScaling& s,
                                 std::optional<int64_t> max_position) {
  if (s.max_position_embeddings.has_value()) {
    max_position = s.max_position_embeddings;
  }
  s.check(dim, max_position);
  RopeFrequencies result{series(dim, base), s.attention_factor.value_or(1.0), {}, 0};
  if (s.type == "linear") {
    for (double& f : result.inv_freq) {
      f /= *s.factor;
    }
  } else if (s.type == "dynamic" && s.alpha.has_value()) {
    result.inv_freq = series(dim, ntk_base(base, dim, *s.alpha));
  } else if (s.type == "ntk") {
    result.inv_freq = ntk(dim, base, s);
  } else if (s.is_yarn()) {
    result = yarn(dim, base, s, max_position);
  } else if (s.type == "llama3") {
    result = llama3(dim, base, s, max_position);
  } else if (s.type == "longrope") {
    result.long_inv_freq = divided(result.inv_freq, s.long_factor);
    result.inv_freq = divided(result.inv_freq, s.short_factor);
    result.attention_factor = longrope_attention_factor(s, max_position);
  } else if (s.type == "proportional") {
    // p-RoPE: the exponent counts the whole head, the lowest frequencies are dropped (angle 0).
    const auto kept =
        static_cast<size_t>(s.partial_rotary_factor.value_or(1.0) * static_cast<double>(dim) / 2.0);
    for (size_t i = 0; i < result.inv_freq.size(); ++i) {
      result.inv_freq[i] = i < kept ? result.inv_freq[i] / s.factor.value_or(1.0) : 0.0;
    }
  }
  result.dim = dim;
  if (s.depends_on_length()) {
    result.trained_length = trained_length(s, max_position);
  }
  return result;
}

}  // namespace posenc
