// The kernels' half types against torch's: every bit pattern in, and every kind of float out.

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>
#include <posenc/core/gpu_types.h>

#include <cmath>
#include <limits>
#include <random>

namespace {

using posenc::core::bit_cast;
using posenc::core::from_compute;
using posenc::core::Pack;
using posenc::core::to_compute;

template <class Ours, class Torchs>
void compare_all_patterns() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Ours ours{static_cast<uint16_t>(bits)};
    const float value = to_compute(ours);
    const float want = static_cast<float>(Torchs(static_cast<uint16_t>(bits), Torchs::from_bits()));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(to_compute(from_compute<Ours>(value)))) << bits;
    } else {
      EXPECT_EQ(bit_cast<uint32_t>(value), bit_cast<uint32_t>(want)) << bits;
      EXPECT_EQ(from_compute<Ours>(value).bits, bits);
    }
  }
}

template <class Ours, class Torchs>
void compare_rounding(float value) {
  const uint16_t got = from_compute<Ours>(value).bits;
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(to_compute(Ours{got}))) << bit_cast<uint32_t>(value);
  } else {
    EXPECT_EQ(got, Torchs(value).x) << bit_cast<uint32_t>(value);
  }
}

TEST(GpuTypes, HalvesWidenAsTorchDoes) {
  compare_all_patterns<posenc::core::Half, c10::Half>();
  compare_all_patterns<posenc::core::BFloat16, c10::BFloat16>();
}

TEST(GpuTypes, FloatsRoundAsTorchDoes) {
  const auto compare = [](float value) {
    compare_rounding<posenc::core::Half, c10::Half>(value);
    compare_rounding<posenc::core::BFloat16, c10::BFloat16>(value);
  };
  std::mt19937 bits(1);
  for (int i = 0; i < 300000; ++i) {
    compare(bit_cast<float>(static_cast<uint32_t>(bits())));
  }
  // Around every half number: the ties between neighbours and their neighbours in float.
  for (uint32_t half = 0; half < 0x7C00; ++half) {
    const float low = to_compute(posenc::core::Half{static_cast<uint16_t>(half)});
    const float high =
        half == 0x7BFF ? 65536.0f : to_compute(posenc::core::Half{static_cast<uint16_t>(half + 1)});
    const float tie = low + (high - low) / 2;
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
      compare(value);
      compare(-value);
    }
  }
  for (uint32_t top = 0; top < 0x7F80; ++top) {
    for (const uint32_t low : {0x7FFFu, 0x8000u, 0x8001u}) {
      compare(bit_cast<float>(top << 16 | low));
    }
  }
}

TEST(GpuTypes, Packs) {
  static_assert(sizeof(Pack<posenc::core::Half, 8>) == 16);
  static_assert(alignof(Pack<posenc::core::Half, 8>) == 16);
  static_assert(alignof(Pack<float, 2>) == 8);
  const float values[4] = {1.0f, -2.5f, 0.0f, 3.0e38f};
  float back[4];
  posenc::core::unpack(posenc::core::pack<posenc::core::BFloat16, 4>(values), back);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(back[i], static_cast<float>(c10::BFloat16(values[i])));
  }
  double wide[2];
  posenc::core::unpack(Pack<double, 2>{{1.25, 1e300}}, wide);
  EXPECT_EQ(wide[1], 1e300);
}

}  // namespace
