#pragma once

// Small vector tools for *_simd.cpp only: everything is anonymous, so each instruction set keeps
// its own.

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <tuple>
#include <type_traits>

namespace posenc::core {
namespace {

template <typename T>
using Vec = at::vec::Vectorized<T>;

/// The type in which the loops compute.
template <typename S>
using compute_t = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// exp for x ≤ 0 or a little above. 0 below the smallest normal number, NaN for NaN.
inline Vec<double> exp_weight(const Vec<double>& x) { return x.exp(); }

/// exp(x) = 2^n · exp(r), |r| ≤ ln2/2; a polynomial of degree 6 (interpolated at Chebyshev nodes,
/// error 2e-8).
inline Vec<float> exp_weight(const Vec<float>& x) {
  const Vec<float> lowest(-87.0f);
#if defined(CPU_CAPABILITY_AVX512)
  // Lanes below the lowest are set to zero by the last step, so they need no clamping.
  const __mmask16 kept = _mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ);
  const Vec<float> clamped = _mm512_min_ps(_mm512_set1_ps(88.0f), x);
  // Adding 1.5 · 2^23 leaves no room for a fraction: the nearest integer.
  const Vec<float> magic(0x1.8p23f);
  const Vec<float> n = at::vec::fmadd(clamped, Vec<float>(1.44269504088896341f), magic) - magic;
#else
  const Vec<float> clamped = at::vec::clamp_max(at::vec::clamp_min(x, lowest), Vec<float>(88.0f));
  const Vec<float> n = (clamped * Vec<float>(1.44269504088896341f)).round();
#endif
  Vec<float> r = at::vec::fnmadd(n, Vec<float>(0x1.62e4p-1f), clamped);
  r = at::vec::fnmadd(n, Vec<float>(0x1.7f7d1cp-20f), r);
  Vec<float> y = at::vec::fmadd(Vec<float>(0x1.6d7544p-10f), r, Vec<float>(0x1.126fb8p-7f));
  y = at::vec::fmadd(y, r, Vec<float>(0x1.5554acp-5f));
  y = at::vec::fmadd(y, r, Vec<float>(0x1.555404p-3f));
  y = at::vec::fmadd(y, r, Vec<float>(0.5f));
  y = at::vec::fmadd(y, r, Vec<float>(1.0f));
  y = at::vec::fmadd(y, r, Vec<float>(1.0f));
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_maskz_scalef_ps(kept, y, n);
#else
#if defined(CPU_CAPABILITY_AVX2)
  const Vec<float> power = _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
#else
  float exponents[Vec<float>::size()];
  n.store(exponents);
  for (int64_t i = 0; i < Vec<float>::size(); ++i) {
    exponents[i] = std::ldexp(1.0f, static_cast<int>(exponents[i]));
  }
  const Vec<float> power = Vec<float>::loadu(exponents);
#endif
  return Vec<float>::blendv(y * power, Vec<float>(0.0f), x < lowest);
#endif
}

/// The larger of two numbers, in one instruction where there is one: either of them where one is
/// NaN, unlike at::vec::maximum.
template <typename T>
inline Vec<T> larger(const Vec<T>& a, const Vec<T>& b) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_max_ps(a, b);
  } else {
    return _mm512_max_pd(a, b);
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_max_ps(a, b);
  } else {
    return _mm256_max_pd(a, b);
  }
#else
  return at::vec::maximum(a, b);
#endif
}

/// A row of S as T, whatever its stride.
template <typename S, typename T>
inline void load_row(const S* src, int64_t stride, T* dst, int64_t n) {
  int64_t i = 0;
  if (stride == 1) {
    if constexpr (std::is_same_v<S, T>) {
      for (; i + Vec<T>::size() <= n; i += Vec<T>::size()) {
        Vec<T>::loadu(src + i).store(dst + i);
      }
    } else {
      for (; i + Vec<S>::size() <= n; i += Vec<S>::size()) {
        auto [low, high] = at::vec::convert_to_float<S>(Vec<S>::loadu(src + i));
        low.store(dst + i);
        high.store(dst + i + Vec<T>::size());
      }
    }
  }
  for (; i < n; ++i) {
    dst[i] = static_cast<T>(src[i * stride]);
  }
}

/// The reverse: a row of T rounded to S.
template <typename S, typename T>
inline void store_row(const T* src, S* dst, int64_t stride, int64_t n) {
  int64_t i = 0;
  if (stride == 1) {
    if constexpr (std::is_same_v<S, T>) {
      for (; i + Vec<T>::size() <= n; i += Vec<T>::size()) {
        Vec<T>::loadu(src + i).store(dst + i);
      }
    } else {
      for (; i + Vec<S>::size() <= n; i += Vec<S>::size()) {
        at::vec::convert_from_float<S>(Vec<T>::loadu(src + i),
                                       Vec<T>::loadu(src + i + Vec<T>::size()))
            .store(dst + i);
      }
    }
  }
  for (; i < n; ++i) {
    dst[i * stride] = static_cast<S>(src[i]);
  }
}

/// One square of as many rows as a vector has lanes. Interleaving row i with row i + N/2 rotates
/// the bits of every element's (row, column) by one place, so log2(N) rounds exchange the two.
template <typename T>
[[gnu::always_inline]] inline void transpose_square(const T* src, int64_t ld_src, T* dst,
                                                    int64_t ld_dst) {
  constexpr int N = Vec<T>::size();
  Vec<T> a[N], b[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
    a[i] = Vec<T>::loadu(src + i * ld_src);
  }
#pragma GCC unroll 4
  for (int round = 1; round < N; round *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; ++i) {
      std::tie(b[2 * i], b[2 * i + 1]) = at::vec::interleave2(a[i], a[i + N / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      a[i] = b[i];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
    a[i].store(dst + i * ld_dst);
  }
}

/// dst (columns × rows) = the transpose of src (rows × columns).
template <typename T>
inline void transpose(const T* src, int64_t ld_src, int64_t rows, int64_t columns, T* dst,
                      int64_t ld_dst) {
  constexpr int64_t N = Vec<T>::size();
  const int64_t full_rows = rows / N * N, full_columns = columns / N * N;
  for (int64_t r = 0; r < full_rows; r += N) {
    for (int64_t c = 0; c < full_columns; c += N) {
      transpose_square(src + r * ld_src + c, ld_src, dst + c * ld_dst + r, ld_dst);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < full_rows ? full_columns : 0; c < columns; ++c) {
      dst[c * ld_dst + r] = src[r * ld_src + c];
    }
  }
}

/// Asks for n numbers before they are read. Any address will do, also one past the end.
template <typename T>
[[gnu::always_inline]] inline void prefetch_row(const T* row, int64_t n) {
  const char* bytes = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < n * static_cast<int64_t>(sizeof(T)); i += 64) {
    __builtin_prefetch(bytes + i);
  }
}

/// A number that log(x) is not below, from x's exponent alone; for x ≥ 1 at most ln 2 too small.
inline double log_below(float x) {
  return (static_cast<int>(std::bit_cast<uint32_t>(x) >> 23) - 127) * std::numbers::ln2;
}
inline double log_below(double x) {
  return (static_cast<int>(std::bit_cast<uint64_t>(x) >> 52) - 1023) * std::numbers::ln2;
}

template <typename T>
inline T sum_lanes(const Vec<T>& x) {
  return at::vec::vec_reduce_all<T>([](const Vec<T>& a, const Vec<T>& b) { return a + b; }, x);
}

/// Σ a·b. Four chains, so that the additions do not wait for each other.
template <typename T>
inline T dot(const T* a, const T* b, int64_t n) {
  constexpr int64_t W = Vec<T>::size();
  Vec<T> s0(0), s1(0), s2(0), s3(0);
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    s0 = at::vec::fmadd(Vec<T>::loadu(a + i), Vec<T>::loadu(b + i), s0);
    s1 = at::vec::fmadd(Vec<T>::loadu(a + i + W), Vec<T>::loadu(b + i + W), s1);
    s2 = at::vec::fmadd(Vec<T>::loadu(a + i + 2 * W), Vec<T>::loadu(b + i + 2 * W), s2);
    s3 = at::vec::fmadd(Vec<T>::loadu(a + i + 3 * W), Vec<T>::loadu(b + i + 3 * W), s3);
  }
  for (; i + W <= n; i += W) {
    s0 = at::vec::fmadd(Vec<T>::loadu(a + i), Vec<T>::loadu(b + i), s0);
  }
  T sum = sum_lanes((s0 + s1) + (s2 + s3));
  for (; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

/// y += factor · x.
template <typename T>
inline void add_scaled(T factor, const T* x, T* y, int64_t n) {
  const Vec<T> f(factor);
  int64_t i = 0;
  for (; i + Vec<T>::size() <= n; i += Vec<T>::size()) {
    at::vec::fmadd(f, Vec<T>::loadu(x + i), Vec<T>::loadu(y + i)).store(y + i);
  }
  for (; i < n; ++i) {
    y[i] += factor * x[i];
  }
}

template <typename T>
inline void fill(T* x, T value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = value;
  }
}

/// ‖x‖, never below the true value: rounding and the squares that underflow are added. Infinite
/// where x is not finite.
template <typename T>
inline double norm_above(const T* x, int64_t n) {
  const double squares = static_cast<double>(dot(x, x, n));
  const double n_real = static_cast<double>(n);
  const double slack =
      1.0 + (n_real + 8.0) * static_cast<double>(std::numeric_limits<T>::epsilon());
  const double lost = std::sqrt(n_real * static_cast<double>(std::numeric_limits<T>::min()));
  const double norm = std::sqrt(squares) * slack + lost;
  return norm <= std::numeric_limits<double>::max() ? norm
                                                    : std::numeric_limits<double>::infinity();
}

/// Hands out pieces of a thread's scratch, each on a cache line of its own. With a null base it
/// only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(int64_t n) {
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }

  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace
}  // namespace posenc::core
