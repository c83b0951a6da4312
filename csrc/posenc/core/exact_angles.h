#pragma once

// cos and sin of position · frequency in float64, a whole row at once. For *_simd.cpp only.
//
// Multiplications, additions and exact steps alone, none of them contracted: the compiler makes
// vector code of the loop, and every instruction set gets the same bits, which a maths library does
// not promise. Errors stay below 2^-52.

#include <bit>
#include <cmath>
#include <cstdint>

namespace posenc::core {
namespace {

/// sin and cos of r, |r| ≤ π/4: polynomials in r² (interpolated at Chebyshev nodes, error 3e-17).
[[gnu::always_inline]] inline void sincos_reduced(double r, double* sin, double* cos) {
  const double z = r * r;
  double s = 0x1.5e0af186af739p-33;
  s = s * z - 0x1.ae600a926c89ap-26;
  s = s * z + 0x1.71de37961e4c6p-19;
  s = s * z - 0x1.a01a019e8357dp-13;
  s = s * z + 0x1.1111111110bb1p-7;
  s = s * z - 0x1.5555555555555p-3;
  *sin = r + r * (z * s);
  double c = -0x1.907d7aebd5e3dp-37;
  c = c * z + 0x1.1eeb68b109173p-29;
  c = c * z - 0x1.27e4fa17a41b4p-22;
  c = c * z + 0x1.a01a019f4e867p-16;
  c = c * z - 0x1.6c16c16c16966p-10;
  c = c * z + 0x1.5555555555555p-5;
  // What 1 − z/2 rounds away is put back.
  const double half = 0.5 * z, near = 1.0 - half;
  *cos = near + ((1.0 - near) - half + z * z * c);
}

/// cos[i], sin[i] of position · frequency[i] for i < n, as if the product were exact: what it
/// rounds away (2^-29 rad at position 2^24) is put back to first order.
inline void exact_angles(double position, const double* frequency, int64_t n,
                         double* __restrict cos, double* __restrict sin) {
  constexpr double kMagic = 0x1.8p52;  // leaves no room for a fraction: the nearest integer
  constexpr double kLargest = 0x1p24;  // so many quarter turns times 29 bits of π/2 are exact
  int64_t far = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double angle = position * frequency[i];
    const double error = std::fma(position, frequency[i], -angle);
    far += !(std::abs(angle) <= kLargest);
    const double shifted = angle * 0x1.45f306dc9c883p-1 + kMagic;
    const double quarters = shifted - kMagic;
    const double r = ((angle - quarters * 0x1.921fb54p+0) - quarters * 0x1.10b4611p-30) -
                     quarters * 0x1.4c4c6628b80dcp-59;
    double s, c;
    sincos_reduced(r, &s, &c);
    const uint64_t q = std::bit_cast<uint64_t>(shifted);
    const double turned_s = q & 1 ? c : s, turned_c = q & 1 ? s : c;
    const double signed_s = q & 2 ? -turned_s : turned_s;
    const double signed_c = (q + 1) & 2 ? -turned_c : turned_c;
    cos[i] = signed_c - signed_s * error;
    sin[i] = signed_s + signed_c * error;
  }
  if (far == 0) {
    return;
  }
  for (int64_t i = 0; i < n; ++i) {  // beyond that, NaN and infinities: the library's functions
    const double angle = position * frequency[i];
    if (!(std::abs(angle) <= kLargest)) {
      const double error = std::fma(position, frequency[i], -angle);
      const double c = std::cos(angle), s = std::sin(angle);
      cos[i] = c - s * error;
      sin[i] = s + c * error;
    }
  }
}

}  // namespace
}  // namespace posenc::core
