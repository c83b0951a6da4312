// The exact phase of the CUDA kernels, on the host.

#include <gtest/gtest.h>
#include <posenc/core/gpu_phase.h>

#include <cmath>
#include <random>

namespace posenc::test {
namespace {

using core::FixedPosition;
using core::kQuarterTurn;
using core::phase_turns;
using core::sine_of_turns;
using core::turn_frequency;

/// The angle modulo 2π in long double, whose product is exact enough below 2^24.
long double angle_of(long double position, double frequency) {
  constexpr long double kTurn = 6.283185307179586476925286766559L;
  return std::remainder(position * static_cast<long double>(frequency), kTurn);
}

TEST(GpuPhase, SineAndCosineOfPositionsUpToTwoToThe24) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200000; ++trial) {
    double frequency = std::pow(10000., -static_cast<double>(random() % 4096) / 4096.);
    frequency *= trial % 7 == 0 ? 55.5 : 1.;  // more than a turn for each step
    frequency *= trial % 5 == 0 ? -1. : 1.;
    const int64_t whole = static_cast<int64_t>(random() % (1 << 25)) - (1 << 24);
    FixedPosition position;
    position.whole = whole;
    double real = static_cast<double>(whole);
    if (trial % 3 == 0) {
      real += static_cast<double>(random() >> 11) * 0x1p-53;
      position = core::fixed_position(real);
    }
    const core::TurnFrequency f = turn_frequency(frequency);
    const uint64_t phase = phase_turns(position, f.fraction, f.whole);
    const long double angle = angle_of(real, frequency);
    ASSERT_NEAR(sine_of_turns(phase), static_cast<double>(std::sin(angle)), 1.3e-7)
        << real << " " << frequency;
    ASSERT_NEAR(sine_of_turns(phase + kQuarterTurn), static_cast<double>(std::cos(angle)), 1.3e-7)
        << real << " " << frequency;
  }
}

TEST(GpuPhase, SmallAnglesKeepTheirDigits) {
  for (double frequency = 1e-3; frequency > 1e-12; frequency *= 0.37) {
    for (const double sign : {1., -1.}) {
      FixedPosition position;
      position.whole = 3;
      const core::TurnFrequency f = turn_frequency(sign * frequency);
      const double got = sine_of_turns(phase_turns(position, f.fraction, f.whole));
      EXPECT_NEAR(got / std::sin(3 * sign * frequency), 1., 3e-7) << frequency;
    }
  }
}

TEST(GpuPhase, QuartersAreExact) {
  EXPECT_EQ(sine_of_turns(0), 0.f);
  EXPECT_EQ(sine_of_turns(kQuarterTurn), 1.f);
  EXPECT_EQ(sine_of_turns(2 * kQuarterTurn), 0.f);
  EXPECT_EQ(sine_of_turns(3 * kQuarterTurn), -1.f);
}

TEST(GpuPhase, FrequenciesOfWholeTurnsAndOfBothSigns) {
  for (const double frequency : {0., 1., 6.283185307179586, 12.6, 1e-300, 4e9, 1e9 / 3}) {
    const core::TurnFrequency f = turn_frequency(frequency), minus = turn_frequency(-frequency);
    const long double turns =
        static_cast<long double>(frequency) / 6.283185307179586476925286766559L;
    const long double got =
        static_cast<long double>(f.whole) + static_cast<long double>(f.fraction) * 0x1p-64L;
    EXPECT_LE(std::abs(got - turns), turns * 0x1p-62L + 0x1p-64L) << frequency;
    EXPECT_EQ(f.fraction + minus.fraction, 0u);
    EXPECT_EQ(f.whole + minus.whole, f.fraction == 0 ? 0 : -1);
  }
}

TEST(GpuPhase, WhatHasNoAngle) {
  for (const double position :
       std::initializer_list<double>{NAN, INFINITY, -INFINITY, 0x1p62, -0x1p62}) {
    EXPECT_FALSE(core::fixed_position(position).known);
  }
  EXPECT_TRUE(core::fixed_position(-0x1p61).known);
  EXPECT_FALSE(core::has_turn_frequency(NAN));
  EXPECT_FALSE(core::has_turn_frequency(INFINITY));
  EXPECT_TRUE(core::has_turn_frequency(-1e9));
}

TEST(GpuPhase, HighHalfOfAProduct) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 10000; ++trial) {
    const uint64_t a = random() >> (trial % 40), b = random() >> (trial % 37);
    const auto exact = static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
    ASSERT_EQ(core::multiply_high(a, b), exact);
  }
}

}  // namespace
}  // namespace posenc::test
