#pragma once

// The rotation of one row of one head. For *_simd.cpp only.

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <posenc/core/bf16_pairs.h>
#include <posenc/rotary/rotary_math.h>

#include <cstdint>
#include <tuple>
#include <type_traits>

namespace posenc::rotary {
namespace {

using at::vec::Vectorized;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// A vector register of T as the one (float, double) or two (half types) registers of its compute
/// type.
template <typename T>
struct Lanes {
  using V = Vectorized<Compute<T>>;
  static constexpr int kParts = std::is_same_v<T, Compute<T>> ? 1 : 2;
  static constexpr int64_t kWidth = Vectorized<T>::size();

  static inline void load(const T* p, V (&v)[kParts]) {
    if constexpr (kParts == 1) {
      v[0] = V::loadu(p);
    } else {
      std::tie(v[0], v[1]) = at::vec::convert_to_float<T>(Vectorized<T>::loadu(p));
    }
  }
  static inline void store(T* p, const V (&v)[kParts]) {
    if constexpr (kParts == 1) {
      v[0].store(p);
    } else {
      at::vec::convert_from_float<T>(v[0], v[1]).store(p);
    }
  }
};

/// How the cos and sin of a row lie, so that the loop over its heads has least to do.
enum class Form {
  kPlain,    ///< one of each a pair
  kDoubled,  ///< one of each a channel, sines with the sign of the formula: pairs to pairs
  kSplit,    ///< plain, but within each register of pairs the even ones first: bfloat16 halves
};

template <typename T, bool kInterleavedIn, bool kInterleavedOut>
constexpr Form form_of() {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if (std::is_same_v<T, c10::BFloat16>) {
    return kInterleavedIn || kInterleavedOut ? Form::kPlain : Form::kSplit;
  }
  return kInterleavedIn && kInterleavedOut ? Form::kDoubled : Form::kPlain;
#else
  return Form::kPlain;
#endif
}

#if defined(CPU_CAPABILITY_AVX512)
inline Vectorized<float> swap_neighbours(const Vectorized<float>& x) {
  return _mm512_permute_ps(x, 0xb1);
}
inline Vectorized<double> swap_neighbours(const Vectorized<double>& x) {
  return _mm512_permute_pd(x, 0x55);
}
#elif defined(CPU_CAPABILITY_AVX2)
inline Vectorized<float> swap_neighbours(const Vectorized<float>& x) {
  return _mm256_permute_ps(x, 0xb1);
}
inline Vectorized<double> swap_neighbours(const Vectorized<double>& x) {
  return _mm256_permute_pd(x, 0x5);
}
#endif

/// cos and sin of one row; the hi pointers equal the lo ones unless a table is wide.
template <typename C>
struct Angles {
  const C *cos_lo, *sin_lo, *cos_hi, *sin_hi;
};

// What is done to one or two registers of channels of a row: cos and sin are loaded once, by the
// constructor, and serve every head. `i` is the first pair, x and y point at a head's first rotated
// channel, kPairs pairs are rotated.

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
/// Pairs to pairs: each channel times its cos, plus its neighbour times its sin. The same sums as
/// rotate_pair's.
template <typename T>
struct DoubledTurn {
  using L = Lanes<T>;
  using V = typename L::V;
  static constexpr int64_t kPairs = L::kWidth / 2;

  int64_t first;
  V cos[L::kParts], sin[L::kParts];

  DoubledTurn(const Angles<Compute<T>>& angles, int64_t, int64_t i) : first(2 * i) {
    for (int k = 0; k < L::kParts; ++k) {
      cos[k] = V::loadu(angles.cos_lo + first + k * V::size());
      sin[k] = V::loadu(angles.sin_lo + first + k * V::size());
    }
  }

  [[gnu::always_inline]] void operator()(const T* x, T* y) const {
    V v[L::kParts];
    L::load(x + first, v);
    for (int k = 0; k < L::kParts; ++k) {
      v[k] = v[k] * cos[k] + swap_neighbours(v[k]) * sin[k];
    }
    L::store(y + first, v);
  }
};

/// bfloat16 pairs to pairs: a lane of 32 bits is a pair.
struct Bf16PairsTurn {
  using V = Vectorized<float>;
  using Lane = core::Bf16Pairs;
  static constexpr int64_t kPairs = V::size();

  int64_t first;
  V cos_lo, sin_lo, cos_hi, sin_hi;

  Bf16PairsTurn(const Angles<float>& angles, int64_t, int64_t i)
      : first(2 * i),
        cos_lo(V::loadu(angles.cos_lo + i)),
        sin_lo(V::loadu(angles.sin_lo + i)),
        cos_hi(V::loadu(angles.cos_hi + i)),
        sin_hi(V::loadu(angles.sin_hi + i)) {}

  [[gnu::always_inline]] void operator()(const c10::BFloat16* x, c10::BFloat16* y) const {
    const Lane::Bits bits = Lane::load(x + first);
    V lo, hi;
    rotate_pair(Lane::even(bits), Lane::odd(bits), cos_lo, sin_lo, cos_hi, sin_hi, lo, hi);
    Lane::store(y + first, Lane::join(lo, hi));
  }
};

/// bfloat16 halves to halves: a lane of 32 bits is two channels of one half, and so of two pairs.
struct Bf16HalvesTurn {
  using V = Vectorized<float>;
  using Lane = core::Bf16Pairs;
  static constexpr int64_t kPairs = 2 * V::size();

  int64_t lo_at, hi_at;
  V cos_lo[2], sin_lo[2], cos_hi[2], sin_hi[2];

  Bf16HalvesTurn(const Angles<float>& angles, int64_t n, int64_t i) : lo_at(i), hi_at(n + i) {
    for (int k = 0; k < 2; ++k) {
      const int64_t at = i + k * V::size();
      cos_lo[k] = V::loadu(angles.cos_lo + at);
      sin_lo[k] = V::loadu(angles.sin_lo + at);
      cos_hi[k] = V::loadu(angles.cos_hi + at);
      sin_hi[k] = V::loadu(angles.sin_hi + at);
    }
  }

  [[gnu::always_inline]] void operator()(const c10::BFloat16* x, c10::BFloat16* y) const {
    const Lane::Bits a = Lane::load(x + lo_at), b = Lane::load(x + hi_at);
    V lo[2], hi[2];
    rotate_pair(Lane::even(a), Lane::even(b), cos_lo[0], sin_lo[0], cos_hi[0], sin_hi[0], lo[0],
                hi[0]);
    rotate_pair(Lane::odd(a), Lane::odd(b), cos_lo[1], sin_lo[1], cos_hi[1], sin_hi[1], lo[1],
                hi[1]);
    Lane::store(y + lo_at, Lane::join(lo[0], lo[1]));
    Lane::store(y + hi_at, Lane::join(hi[0], hi[1]));
  }
};
#endif

/// Any layout to any other.
template <typename T, bool kInterleavedIn, bool kInterleavedOut>
struct PlainTurn {
  using L = Lanes<T>;
  using V = typename L::V;
  static constexpr int kParts = L::kParts;
  static constexpr int64_t kPairs = L::kWidth;  // a register of T each way

  int64_t n, i;
  V cos_lo[kParts], sin_lo[kParts], cos_hi[kParts], sin_hi[kParts];

  PlainTurn(const Angles<Compute<T>>& angles, int64_t n, int64_t i) : n(n), i(i) {
    for (int k = 0; k < kParts; ++k) {
      const int64_t at = i + k * V::size();
      cos_lo[k] = V::loadu(angles.cos_lo + at);
      sin_lo[k] = V::loadu(angles.sin_lo + at);
      cos_hi[k] = V::loadu(angles.cos_hi + at);
      sin_hi[k] = V::loadu(angles.sin_hi + at);
    }
  }

  [[gnu::always_inline]] void operator()(const T* x, T* y) const {
    V first[kParts], second[kParts], a[kParts], b[kParts];
    if constexpr (kInterleavedIn) {
      L::load(x + 2 * i, first);
      L::load(x + 2 * i + L::kWidth, second);
      // Registers in memory order: first[0], first[1], second[0], second[1]; neighbours hold whole
      // pairs.
      V all[2 * kParts];
      for (int k = 0; k < kParts; ++k) {
        all[k] = first[k];
        all[kParts + k] = second[k];
      }
      for (int k = 0; k < kParts; ++k) {
        std::tie(a[k], b[k]) = at::vec::deinterleave2(all[2 * k], all[2 * k + 1]);
      }
    } else {
      L::load(x + i, a);
      L::load(x + n + i, b);
    }
    V lo[kParts], hi[kParts];
    for (int k = 0; k < kParts; ++k) {
      rotate_pair(a[k], b[k], cos_lo[k], sin_lo[k], cos_hi[k], sin_hi[k], lo[k], hi[k]);
    }
    if constexpr (kInterleavedOut) {
      V all[2 * kParts];
      for (int k = 0; k < kParts; ++k) {
        std::tie(all[2 * k], all[2 * k + 1]) = at::vec::interleave2(lo[k], hi[k]);
      }
      for (int k = 0; k < kParts; ++k) {
        first[k] = all[k];
        second[k] = all[kParts + k];
      }
      L::store(y + 2 * i, first);
      L::store(y + 2 * i + L::kWidth, second);
    } else {
      L::store(y + i, lo);
      L::store(y + n + i, hi);
    }
  }
};

template <typename T, bool kInterleavedIn, bool kInterleavedOut>
auto turn_of() {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  constexpr Form kForm = form_of<T, kInterleavedIn, kInterleavedOut>();
  if constexpr (kForm == Form::kDoubled) {
    return std::type_identity<DoubledTurn<T>>{};
  } else if constexpr (kForm == Form::kSplit) {
    return std::type_identity<Bf16HalvesTurn>{};
  } else if constexpr (std::is_same_v<T, c10::BFloat16> && kInterleavedIn && kInterleavedOut) {
    return std::type_identity<Bf16PairsTurn>{};
  } else
#endif
  {
    return std::type_identity<PlainTurn<T, kInterleavedIn, kInterleavedOut>>{};
  }
}

/// The heads of one row and how far apart they lie.
struct HeadSteps {
  int64_t heads, x, y;
};

/// Rotates one row of every head: `x`, `y` point at the first rotated channel of the first head,
/// channels lie side by side.
template <typename T, bool kInterleavedIn, bool kInterleavedOut>
inline void rotate_row(const T* x, T* y, const HeadSteps& steps, int64_t n,
                       const Angles<Compute<T>>& angles) {
  using C = Compute<T>;
  using Turn = typename decltype(turn_of<T, kInterleavedIn, kInterleavedOut>())::type;
  int64_t done = 0;
  for (; done + Turn::kPairs <= n; done += Turn::kPairs) {
    const Turn turn(angles, n, done);
    for (int64_t h = 0; h < steps.heads; ++h) {
      turn(x + h * steps.x, y + h * steps.y);
    }
  }
  if (done == n) {
    return;
  }
  for (int64_t h = 0; h < steps.heads; ++h, x += steps.x, y += steps.y) {
    for (int64_t i = done; i < n; ++i) {
      const C a = static_cast<C>(x[kInterleavedIn ? 2 * i : i]);
      const C b = static_cast<C>(x[kInterleavedIn ? 2 * i + 1 : n + i]);
      C lo, hi;
      if constexpr (form_of<T, kInterleavedIn, kInterleavedOut>() == Form::kDoubled) {
        rotate_pair(a, b, angles.cos_lo[2 * i], -angles.sin_lo[2 * i], angles.cos_lo[2 * i + 1],
                    angles.sin_lo[2 * i + 1], lo, hi);
      } else {
        rotate_pair(a, b, angles.cos_lo[i], angles.sin_lo[i], angles.cos_hi[i], angles.sin_hi[i],
                    lo, hi);
      }
      y[kInterleavedOut ? 2 * i : i] = static_cast<T>(lo);
      y[kInterleavedOut ? 2 * i + 1 : n + i] = static_cast<T>(hi);
    }
  }
}

}  // namespace
}  // namespace posenc::rotary
