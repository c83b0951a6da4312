#pragma once

// Registers of bfloat16 taken as lanes of 32 bits, each a pair of neighbours: the two halves of a
// pair become floats by a shift and a mask, where converting the register in order takes several
// shuffles. For *_simd.cpp only; POSENC_BF16_PAIRS tells whether the instruction set has it.

#include <posenc/core/vec_tools.h>

namespace posenc::core {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
#define POSENC_BF16_PAIRS 1
struct Bf16Pairs {
  using Bits = __m512i;
  static Bits load(const c10::BFloat16* p) { return _mm512_loadu_si512(p); }
  static void store(c10::BFloat16* p, const Bits& bits) { _mm512_storeu_si512(p, bits); }
  /// The numbers at even places.
  static Vec<float> even(const Bits& bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  }
  static Vec<float> odd(const Bits& bits) { return _mm512_castsi512_ps(keep_high(bits)); }

  /// Rounded to nearest, ties to even. A NaN must have a lower half of zeros, as those have that
  /// come from bfloat16 or out of arithmetic: another could round up to a number.
  static Bits join(const Vec<float>& even, const Vec<float>& odd) {
    return _mm512_or_si512(_mm512_srli_epi32(round(even), 16), keep_high(round(odd)));
  }
  /// The same for any NaN.
  static Bits join_any(const Vec<float>& even, const Vec<float>& odd) {
    return join(plain_nan(even), plain_nan(odd));
  }

 private:
  static Bits keep_high(const Bits& bits) {
    return _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  }
  static Bits round(const Vec<float>& x) {
    const Bits bits = _mm512_castps_si512(x);
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const Bits up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(up, is_odd, up, _mm512_set1_epi32(1));
  }
  static Vec<float> plain_nan(const Vec<float>& x) {
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                              _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN()));
  }
};
#elif defined(CPU_CAPABILITY_AVX2)
#define POSENC_BF16_PAIRS 1
struct Bf16Pairs {
  using Bits = __m256i;
  static Bits load(const c10::BFloat16* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store(c10::BFloat16* p, const Bits& bits) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  }
  static Vec<float> even(const Bits& bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
  static Vec<float> odd(const Bits& bits) { return _mm256_castsi256_ps(keep_high(bits)); }
  static Bits join(const Vec<float>& even, const Vec<float>& odd) {
    return _mm256_or_si256(_mm256_srli_epi32(round(even), 16), keep_high(round(odd)));
  }

 private:
  static Bits keep_high(const Bits& bits) {
    return _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  }
  static Bits round(const Vec<float>& x) {
    const Bits bits = _mm256_castps_si256(x);
    const Bits is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
  }
};
#endif

}  // namespace
}  // namespace posenc::core
