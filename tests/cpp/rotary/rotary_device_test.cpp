// The rotation kernel over its own grid, against the formula in long double: every dtype, layout,
// width, way to give positions and frequencies; each element written once, none read outside.

#include <gtest/gtest.h>

#include "rotary/device_rotation.h"

namespace posenc::test {
namespace {

std::vector<double> frequencies(int64_t n, int64_t sets = 1) {
  std::vector<double> result;
  for (int64_t set = 0; set < sets; ++set) {
    for (int64_t i = 0; i < n; ++i) {
      result.push_back(std::pow(10000.0, -static_cast<double>(i) / n) * (1 + 0.125 * set));
    }
  }
  return result;
}

template <class T>
class RotaryDevice : public testing::Test {
 public:
  static Rotation<T> of(int64_t heads, int64_t head_dim, int64_t n, int64_t start = 0) {
    Rotation<T> r;
    r.n = n;
    r.start = start;
    r.inv_freq = frequencies(n);
    const TensorLayout layout = by_seq(r.batch, r.seq, heads, head_dim);
    r.add(heads, head_dim, layout, layout);
    return r;
  }
  /// One rounding of an output, and in float32 the arithmetic before it.
  static void expect_right(Rotation<T>& r) {
    EXPECT_EQ(r.run(), "");
    EXPECT_LE(r.worst, sizeof(T) == 2 ? 0.51 : sizeof(T) == 4 ? 4 : 6);
  }
};

using Types = testing::Types<double, float, core::Half, core::BFloat16>;
TYPED_TEST_SUITE(RotaryDevice, Types);

TYPED_TEST(RotaryDevice, EveryLayoutAndDirection) {
  for (int bits = 0; bits < 16; ++bits) {
    auto r = this->of(3, 32, 16);
    r.interleaved_in = bits & 1;
    r.interleaved_out = bits & 2;
    r.inverse = bits & 4;
    r.factor = bits & 8 ? 1.25 : 1.0;
    this->expect_right(r);
    EXPECT_EQ(r.pack, core::kFullPack<TypeParam>);
    // Every channel in packs of 16 bytes: one read, one write.
    EXPECT_EQ(r.wide, 2 * 2 * 5 * 3 * 32 / core::kFullPack<TypeParam>);
  }
}

TYPED_TEST(RotaryDevice, WidthsAndStarts) {
  struct Width {
    int64_t head_dim, n, start;
  };
  for (const Width w : {Width{24, 8, 8}, Width{40, 12, 16}, Width{20, 8, 4}, Width{10, 3, 1},
                        Width{7, 3, 0}, Width{2, 1, 0}, Width{6, 0, 0}, Width{80, 12, 0}}) {
    for (const bool pairs : {false, true}) {
      auto r = this->of(5, w.head_dim, w.n, w.start);
      r.interleaved_in = r.interleaved_out = pairs;
      this->expect_right(r);
    }
  }
}

TYPED_TEST(RotaryDevice, InPlaceTouchesTheRotatedChannelsAlone) {
  for (const bool pairs : {false, true}) {
    for (const auto order : {HostGpu::kForwards, HostGpu::kBackwards}) {
      auto r = this->of(9, 40, 8, 8);
      r.interleaved_in = r.interleaved_out = pairs;
      r.in_place = true;
      r.order = order;
      this->expect_right(r);
    }
  }
}

TYPED_TEST(RotaryDevice, StridesAndAddresses) {
  Rotation<TypeParam> r;
  r.n = 8;
  r.inv_freq = frequencies(8);
  r.add(4, 16, by_head(2, 5, 4, 16), by_seq(2, 5, 4, 16));
  this->expect_right(r);
  EXPECT_EQ(r.pack, core::kFullPack<TypeParam>);
  r.tensors.clear();
  r.add(3, 16, by_seq(2, 5, 3, 16, 16), by_head(2, 5, 3, 16));  // a slice of a packed projection
  this->expect_right(r);
  EXPECT_EQ(r.pack, core::kFullPack<TypeParam>);
  r.tensors.clear();
  r.add(3, 16, by_seq(2, 5, 3, 16, 1), by_seq(2, 5, 3, 16));
  this->expect_right(r);
  EXPECT_EQ(r.pack, 1);
  r.tensors.clear();
  r.add(3, 16, spread(2, 5, 3, 16), spread(2, 5, 3, 16));
  this->expect_right(r);
  EXPECT_EQ(r.pack, 1);
  r.tensors.clear();
  r.add(3, 16, by_seq(2, 5, 3, 16), by_seq(2, 5, 3, 16));
  r.x_shift = 1;
  this->expect_right(r);
  EXPECT_EQ(r.pack, 1);
}

TYPED_TEST(RotaryDevice, SeveralTensorsOneOfThemCopied) {
  for (const bool relaid : {false, true}) {
    Rotation<TypeParam> r;
    r.n = 8;
    r.start = 8;
    r.interleaved_out = relaid;
    r.inv_freq = frequencies(8);
    r.add(6, 24, by_seq(2, 5, 6, 24), by_seq(2, 5, 6, 24));
    r.add(2, 32, by_head(2, 5, 2, 32), by_seq(2, 5, 2, 32));
    r.add(3, 24, by_seq(2, 5, 3, 24), by_seq(2, 5, 3, 24), /*copied=*/true);
    this->expect_right(r);
  }
}

TYPED_TEST(RotaryDevice, ManyHeadsAndTokensAreSharedOut) {
  auto r = this->of(13, 16, 8);
  r.batch = 3;
  r.seq = 211;
  r.tensors.clear();
  r.add(13, 16, by_seq(3, 211, 13, 16), by_seq(3, 211, 13, 16));
  this->expect_right(r);
}

TYPED_TEST(RotaryDevice, PositionsOfEveryKind) {
  for (int bits = 0; bits < 8; ++bits) {
    auto r = this->of(2, 16, 8);
    r.by_ids = true;
    r.narrow_ids = bits & 1;
    r.real = bits & 2;
    r.offset = bits & 4 ? 1000 : 0;
    r.position = [bits](int, int64_t b, int64_t l) {
      return static_cast<double>(17 * l - 40 * b) + (bits & 2 ? 0.375 : 0.0);
    };
    this->expect_right(r);
  }
  auto r = this->of(2, 16, 8);
  r.offset = (1 << 24) - 3;
  r.position = [](int, int64_t, int64_t l) { return static_cast<double>((1 << 24) - 3 + l); };
  this->expect_right(r);
}

TYPED_TEST(RotaryDevice, AxesOfPositions) {
  for (const bool on_device : {false, true}) {
    auto r = this->of(2, 32, 16);
    r.on_device = on_device;
    r.by_ids = true;
    r.axes = {0, 0, 0, 1, 1, 1, 1, 2, 2, 0, 1, 2, 0, 1, 2, 2};
    r.position = [](int axis, int64_t b, int64_t l) {
      return static_cast<double>(l * (axis + 1) + 100 * b - 7 * axis);
    };
    this->expect_right(r);
  }
}

TYPED_TEST(RotaryDevice, FrequenciesInDeviceMemory) {
  for (int kind = 0; kind < 3; ++kind) {
    auto r = this->of(5, 16, 8);
    r.on_device = true;
    r.per_batch = kind == 1;
    r.per_head = kind == 2;
    r.inv_freq = frequencies(8, kind == 0 ? 1 : 5);
    this->expect_right(r);
  }
}

TYPED_TEST(RotaryDevice, MoreFrequenciesThanTravelByValue) {
  for (const bool pairs : {false, true}) {
    auto r = this->of(2, 352, 160, 16);
    r.interleaved_in = r.interleaved_out = pairs;
    this->expect_right(r);
  }
}

TYPED_TEST(RotaryDevice, WhatHasNoAngleIsNaN) {
  auto r = this->of(1, 4, 2);
  r.inv_freq = {1.0, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(r.run(), "");
  const auto& t = r.tensors[0];
  EXPECT_TRUE(std::isfinite(core::to_compute(t.y[0])) && std::isfinite(core::to_compute(t.y[2])));
  EXPECT_TRUE(std::isnan(core::to_compute(t.y[1])) && std::isnan(core::to_compute(t.y[3])));
}

TYPED_TEST(RotaryDevice, Tables) {
  for (int bits = 0; bits < 64; ++bits) {
    auto r = this->of(3, 24, 8, 8);
    r.tables = true;
    r.wide_tables = bits & 1;
    r.interleaved_in = bits & 2;
    r.interleaved_out = bits & 4;
    r.inverse = bits & 8;
    r.gathered = bits & 16;
    r.half_tables = bits & 32;
    r.n_rows = 50;
    r.by_ids = !r.gathered;
    r.position = [](int, int64_t b, int64_t l) { return static_cast<double>(48 - 3 * l - b); };
    this->expect_right(r);
  }
  auto r = this->of(3, 6, 3);
  r.tables = true;
  r.n_rows = 5;
  this->expect_right(r);  // row l, one element at a time
  r = this->of(3, 6, 3);
  r.tables = r.by_ids = true;
  r.n_rows = 4;
  EXPECT_NE(r.run().find("required: apply_rotary: expected position_ids within"),
            std::string::npos);
}

TEST(RotaryDevice64, OffsetsPastTwoToThe31) {
  // (1, L, H, D) of 2^32 + 2^20 elements of bfloat16: the last tokens, in packs.
  const int64_t heads = 16, dim = 64, seq = (int64_t{1} << 22) + 1024, n = seq * heads * dim;
  ASSERT_GT(n, int64_t{1} << 32);
  using T = core::BFloat16;
  HostGpu gpu;
  const auto value = [](int64_t i) { return core::from_compute<T>(static_cast<float>(i % 61)); };
  T* x = gpu.virtual_tensor<T>(n, "x", value, false);
  T* y = gpu.virtual_tensor<T>(n, "y", value, true);
  rotary::RotaryDeviceParams p{};
  p.parts[0] = {
      x,  y, n,    heads * dim, dim, 1, n, heads * dim, dim, 1, static_cast<int32_t>(heads),
      64, 0, false};
  p.n_parts = 1;
  p.batch = 1;
  p.seq = seq;
  p.n_pairs = p.n_here = 32;
  p.copies_rest = true;
  p.attention_factor = 1.0;
  const std::vector<double> freq = frequencies(32);
  for (int i = 0; i < 32; ++i) {
    rotary::set_frequency(p, i, freq[i], 0, false);
  }
  ASSERT_EQ(rotary::choose_pack(p, sizeof(T)), 8);
  rotary::plan_rotation(p, 8);
  const auto grid = rotary::rotary_grid(p);
  const int64_t tokens = grid.threads / p.chunks;
  gpu.run(grid, {grid.x - 1},
          [&](const HostContext& c) { rotary::rotate_body<T, 8, false>(c, p); });
  const int64_t begin = (seq - tokens) * heads * dim;
  gpu.expect_written_once(y + begin, tokens * heads * dim);
  EXPECT_EQ(gpu.report(), "");
  const auto written = gpu.written(y);
  EXPECT_EQ(static_cast<int64_t>(written.size()), tokens * heads * dim);
  for (int64_t i = 0; i < 32; ++i) {
    const int64_t at = n - dim + i;
    const long double angle = static_cast<long double>(seq - 1) * freq[i];
    const long double want = core::to_compute(value(at)) * std::cos(angle) -
                             core::to_compute(value(at + 32)) * std::sin(angle);
    EXPECT_NEAR(core::to_compute(written.at(at)), static_cast<double>(want), 0.26) << i;
  }
}

TEST(RotaryDevice64, ParametersFitAndHeadsAreShared) {
  rotary::RotaryDeviceParams p{};
  p.n_parts = 1;
  p.parts[0].heads = 100000;
  p.parts[0].head_dim = 16;
  p.batch = p.seq = 1;
  p.n_pairs = p.n_here = 8;
  rotary::plan_rotation(p, 8);
  const auto grid = rotary::rotary_grid(p);
  EXPECT_LE(grid.y, core::kMaxGridYZ);
  EXPECT_GE(grid.y * p.heads_per_thread, 100000);
}

}  // namespace
}  // namespace posenc::test
