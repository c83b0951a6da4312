#pragma once

// Numbers of the CUDA kernels: half types as bit patterns, packs of 16 bytes, and their
// conversions. Neither torch nor CUDA headers: the kernels' bodies also run on the host, in tests.

#include <posenc/core/macros.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace posenc::core {

/// The dtypes that a kernel is compiled for.
enum class Dtype : int32_t { kDouble, kFloat, kHalf, kBFloat16 };

/// An IEEE binary16 number, as its bits.
struct Half {
  uint16_t bits;
};

/// A bfloat16 number, as its bits: the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

/// The type that a kernel computes in: float64 for float64, float32 for everything else.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// N numbers that are read and written at once; 16 bytes at most.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert(N > 0 && (N & (N - 1)) == 0 && sizeof(T) * N <= 16);
  T v[N];

  POSENC_HD T& operator[](int i) { return v[i]; }
  POSENC_HD const T& operator[](int i) const { return v[i]; }
};

/// How many T fill 16 bytes.
template <class T>
inline constexpr int kFullPack = 16 / static_cast<int>(sizeof(T));

/// The bits of a number as another type of its size.
template <class To, class From>
POSENC_HD inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

/// \defgroup gpu_conversions Conversions, rounding to nearest even
/// On the device by its own instructions where it has them; the same values on the host (NaNs stay
/// NaNs, their payload may differ).
/// @{
POSENC_HD inline float to_compute(float v) { return v; }
POSENC_HD inline double to_compute(double v) { return v; }
POSENC_HD inline float to_compute(BFloat16 v) {
  return bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

POSENC_HD inline float to_compute(Half v) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(v.bits));
  return result;
#else
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t magnitude = v.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, NaN
    return bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  }
  // Exponent and mantissa moved to float's places; 2^112 sets the exponent right, subnormals too.
  const float value = bit_cast<float>(magnitude << 13) * 0x1p112f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(value));
#endif
}

template <class T>
POSENC_HD inline T from_compute(ComputeType<T> v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t bits = bit_cast<uint32_t>(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
      return {0x7FC0u};  // NaN: rounding could carry its payload into the sign
    }
    return {static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
  } else if constexpr (std::is_same_v<T, Half>) {
#if defined(__CUDA_ARCH__)
    uint16_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(v));
    return {result};
#else
    const uint32_t bits = bit_cast<uint32_t>(v);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
      return {static_cast<uint16_t>(sign | 0x7E00u)};
    }
    if (magnitude >= 0x477FF000u) {  // rounds to 2^16 or more
      return {static_cast<uint16_t>(sign | 0x7C00u)};
    }
    if (magnitude < 0x38800000u) {  // subnormal in half: float's own addition rounds it
      const float shifted = bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (bit_cast<uint32_t>(shifted) - 0x3F000000u))};
    }
    const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u;
    return {static_cast<uint16_t>(sign | rounded >> 13)};
#endif
  } else {
    return v;
  }
}

/// Rounds two numbers to neighbours in memory.
template <class T>
POSENC_HD inline void round_pair(ComputeType<T> first, ComputeType<T> second, T* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, BFloat16>) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    out[0].bits = static_cast<uint16_t>(both);
    out[1].bits = static_cast<uint16_t>(both >> 16);
  } else
#endif
  {
    out[0] = from_compute<T>(first);
    out[1] = from_compute<T>(second);
  }
}

/// All numbers of a pack, widened and rounded.
template <class T, int N>
POSENC_HD inline void unpack(const Pack<T, N>& pack, ComputeType<T> (&values)[N]) {
  POSENC_UNROLL
  for (int i = 0; i < N; ++i) {
    values[i] = to_compute(pack[i]);
  }
}

template <class T, int N>
POSENC_HD inline Pack<T, N> pack(const ComputeType<T> (&values)[N]) {
  Pack<T, N> result;
  if constexpr (N == 1) {
    result[0] = from_compute<T>(values[0]);
  } else {
    POSENC_UNROLL
    for (int i = 0; i < N; i += 2) {
      round_pair<T>(values[i], values[i + 1], &result[i]);
    }
  }
  return result;
}
/// @}

}  // namespace posenc::core
