#pragma once

// cos and sin of position · frequency for the CUDA kernels, exact without fp64 arithmetic.
//
// Angles are counted in turns, in fixed point: a frequency is frac(f / 2π) in units of 2^-64, and
// the angle of an integer position is their product modulo 2^64, in integers, where whole turns
// fall away by themselves. The only error is that of the frequency's own rounding times the
// position: 2^-40 of a turn at position 2^24. One pure function of (position, frequency), whatever
// way a position is reached.

#include <posenc/core/gpu_types.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace posenc::core {

/// A frequency in turns for each step of the position.
struct TurnFrequency {
  uint64_t fraction;  ///< in units of 2^-64
  int32_t whole;      ///< matters to real positions alone
};

/// a · b, rounded: not fused with what follows.
POSENC_HD inline double rounded_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/// inv_freq / 2π; finite, and not so large that its whole turns pass 2^31. Carried to twice the
/// precision of a double.
POSENC_HD inline TurnFrequency turn_frequency(double inv_freq) {
  constexpr double kHigh = 0x1.45f306dc9c883p-3, kLow = -0x1.6b01ec5417056p-57;  // 1 / 2π
  const double size = std::fabs(inv_freq);
  const double high = rounded_product(size, kHigh);
  const double low = std::fma(size, kHigh, -high) + size * kLow;
  const double whole = std::floor(high);
  // As one number of 96 bits: what is added may step over a whole turn.
  const auto fraction = static_cast<uint64_t>((high - whole) * 0x1p64);
  const auto correction = static_cast<int64_t>(std::rint(low * 0x1p64));
  const uint64_t sum = fraction + static_cast<uint64_t>(correction);
  auto turns = static_cast<int64_t>(whole);
  turns += correction > 0 && sum < fraction ? 1 : correction < 0 && sum > fraction ? -1 : 0;
  if (inv_freq >= 0) {
    return {sum, static_cast<int32_t>(turns)};
  }
  return {-sum, static_cast<int32_t>(sum == 0 ? -turns : -turns - 1)};
}

/// In place of TurnFrequency::whole where has_turn_frequency is false.
inline constexpr int32_t kNoTurn = INT32_MIN;
POSENC_HD inline bool has_turn_frequency(double inv_freq) { return std::fabs(inv_freq) < 0x1p32; }

/// A position as the phase takes it: floor and rest, the rest in units of 2^-64.
struct FixedPosition {
  int64_t whole = 0;
  uint64_t rest = 0;
  bool known = true;  ///< false: NaN, infinite or beyond 2^62, whose angle is NaN
};

POSENC_HD inline FixedPosition fixed_position(double position) {
  FixedPosition result;
  result.known = position > -0x1p62 && position < 0x1p62;
  if (result.known) {
    const double whole = std::floor(position);
    result.whole = static_cast<int64_t>(whole);
    result.rest = static_cast<uint64_t>((position - whole) * 0x1p64);
  }
  return result;
}

/// The upper half of a · b.
POSENC_HD inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  const uint64_t a0 = a & 0xFFFFFFFFu, a1 = a >> 32, b0 = b & 0xFFFFFFFFu, b1 = b >> 32;
  const uint64_t low = a0 * b0 >> 32;
  const uint64_t middle = a1 * b0 + low;
  const uint64_t other = a0 * b1 + (middle & 0xFFFFFFFFu);
  return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

/// The angle in units of 2^-64 turns.
POSENC_HD inline uint64_t phase_turns(const FixedPosition& position, uint64_t fraction,
                                      int32_t whole) {
  uint64_t phase = static_cast<uint64_t>(position.whole) * fraction;
  if (position.rest != 0) {
    phase += multiply_high(position.rest, fraction) +
             position.rest * static_cast<uint64_t>(int64_t{whole});
  }
  return phase;
}

/// A quarter turn: cos(phase) = sin(phase + kQuarterTurn).
inline constexpr uint64_t kQuarterTurn = uint64_t{1} << 62;

/// sin and cos of an angle in units of 2^-64 turns, within 1.3 units of float's rounding of them
/// (near the sine's zeros as well). Polynomials for |angle| ≤ π/4, fitted at Chebyshev nodes.
POSENC_HD inline void sincos_of_turns(uint64_t phase, float& sine, float& cosine) {
  const uint64_t quadrant = (phase + (kQuarterTurn >> 1)) >> 62;
  const auto rest = static_cast<int64_t>(phase - (quadrant << 62));  // within ± 2^61
  const float angle = static_cast<float>(rest) * 0x1.921fb6p-62f;    // 2π · 2^-64
  const float square = angle * angle;
  const float s =
      angle +
      angle * square * (-0x1.555546p-3f + square * (0x1.11074p-7f + square * -0x1.9945bep-13f));
  const float c =
      1.0f - 0.5f * square +
      square * square * (0x1.55554ap-5f + square * (-0x1.6c0c5ap-10f + square * 0x1.99f5ap-16f));
  const bool swapped = (quadrant & 1) != 0;
  const float sine_size = swapped ? c : s, cosine_size = swapped ? s : c;
  sine = (quadrant & 2) == 0 ? sine_size : -sine_size;
  cosine = ((quadrant + 1) & 2) == 0 ? cosine_size : -cosine_size;
}

/// The sine alone.
POSENC_HD inline float sine_of_turns(uint64_t phase) {
  float sine, cosine;
  sincos_of_turns(phase, sine, cosine);
  return sine;
}

/// sin and cos of position · frequency in float64: the product's rounding error is put back to
/// first order.
POSENC_HD inline void exact_sincos(double position, double frequency, double& sine,
                                   double& cosine) {
  const double angle = position * frequency;
  const double error = std::fma(position, frequency, -angle);
  const double c = std::cos(angle), s = std::sin(angle);
  sine = s + c * error;
  cosine = c - s * error;
}

/// sin (cos where `cosine`) of position · frequency in float64: the product's rounding error is put
/// back to first order.
POSENC_HD inline double exact_sine(double position, double frequency, bool cosine) {
  double s, c;
  exact_sincos(position, frequency, s, c);
  return cosine ? c : s;
}

}  // namespace posenc::core
