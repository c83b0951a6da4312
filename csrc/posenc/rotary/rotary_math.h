#pragma once

#include <posenc/core/macros.h>

namespace posenc::rotary {

/// The rotation of one pair, the only place where the formula stands: (lo, hi) ← R(angle)·(a, b)
/// with c = cos, s = sin. The two channels may have cos and sin of their own (see Tables);
/// otherwise pass the same twice. T is a number or a vector of numbers.
template <typename T>
POSENC_HD inline void rotate_pair(const T& a, const T& b, const T& cos_lo, const T& sin_lo,
                                  const T& cos_hi, const T& sin_hi, T& lo, T& hi) {
  lo = a * cos_lo - b * sin_lo;
  hi = a * sin_hi + b * cos_hi;
}

}  // namespace posenc::rotary
