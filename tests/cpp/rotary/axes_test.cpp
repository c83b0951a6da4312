// Which position axis each frequency reads.

#include <posenc/posenc.h>

#include <algorithm>

#include "support/support.h"

namespace {

using posenc::mrope_axes;
using posenc::rope_axes;
using posenc::test::error_of;
using Axes = std::vector<int64_t>;

int64_t count(const Axes& axes, int64_t axis) { return std::count(axes.begin(), axes.end(), axis); }

TEST(RopeAxes, ContiguousSectionsFollowEachOther) {
  EXPECT_EQ(mrope_axes({1, 2, 2}), (Axes{0, 1, 1, 2, 2}));
  const Axes qwen = mrope_axes({16, 24, 24});
  ASSERT_EQ(qwen.size(), 64u);
  EXPECT_EQ(qwen[15], 0);
  EXPECT_EQ(qwen[16], 1);
  EXPECT_EQ(qwen[39], 1);
  EXPECT_EQ(qwen[40], 2);
  // XD-RoPE: four axes, one of them empty
  EXPECT_EQ(rope_axes("contiguous", {2, 1, 0, 1}), (Axes{0, 0, 1, 3}));
}

TEST(RopeAxes, InterleavedTakesTurnsAndEndsWithTime) {
  const Axes qwen = mrope_axes({24, 20, 20}, /*interleaved=*/true);
  ASSERT_EQ(qwen.size(), 64u);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(qwen[i], i < 60 ? i % 3 : 0) << i;
  }
  EXPECT_EQ(count(qwen, 0), 24);
  // Qwen3.5: height reaches the last frequency
  const Axes narrow = mrope_axes({11, 11, 10}, true);
  EXPECT_EQ(count(narrow, 0), 11);
  EXPECT_EQ(count(narrow, 1), 11);
  EXPECT_EQ(count(narrow, 2), 10);
  EXPECT_EQ(narrow[31], 1);
  EXPECT_EQ(narrow[30], 0);
}

TEST(RopeAxes, AlternatingByParity) {
  EXPECT_EQ(rope_axes("alternating", {2, 2}), (Axes{0, 1, 0, 1}));
  EXPECT_EQ(rope_axes("alternating", {2, 1, 1}), (Axes{0, 1, 2, 0}));
  const Axes ernie = rope_axes("alternating_hwt", {22, 22, 20});
  ASSERT_EQ(ernie.size(), 64u);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(ernie[i], i < 44 ? 1 + i % 2 : 0) << i;
  }
  EXPECT_EQ(rope_axes("alternating_thw", {1, 2, 2}), (Axes{1, 2, 1, 2, 0}));
}

TEST(RopeAxes, RefusesSectionsThatMakeNoSense) {
  const std::string sum = error_of([] { mrope_axes({16, 24, 24}, false, 32); });
  EXPECT_NE(sum.find("32"), std::string::npos) << sum;
  EXPECT_NE(sum.find("[16, 24, 24]"), std::string::npos) << sum;
  EXPECT_NE(sum.find("64"), std::string::npos) << sum;
  EXPECT_NE(error_of([] { mrope_axes({}); }), "");
  EXPECT_NE(error_of([] { mrope_axes({0, 0, 0}); }), "");
  EXPECT_NE(error_of([] { mrope_axes({3, -1, 2}); }), "");
  EXPECT_NE(error_of([] { mrope_axes({2, 2}, true); }).find("(t, h, w)"), std::string::npos);
  EXPECT_NE(error_of([] { rope_axes("alternating_hwt", {3, 2, 2}); }), "");
  EXPECT_NE(error_of([] { rope_axes("alternating", {1, 3}); }), "");
  EXPECT_NE(error_of([] { rope_axes("zigzag", {1, 1}); }).find("zigzag"), std::string::npos);
}

TEST(RopeAxes, EqualAxesAreOneDimensionalRoPE) {
  const at::Tensor x = torch::randn({2, 7, 3, 128});
  const auto inv_freq = posenc::rope_inv_freq(128);
  const at::Tensor ids = torch::randint(-50, 100000, {2, 7});
  const at::Tensor plain = posenc::rotary_embedding(x, inv_freq, ids);
  const at::Tensor thw = ids.unsqueeze(0).expand({3, 2, 7});
  for (const auto& axes : {mrope_axes({16, 24, 24}), mrope_axes({24, 20, 20}, true),
                           rope_axes("alternating_hwt", {22, 22, 20})}) {
    const at::Tensor out = posenc::rotary_embedding(x, inv_freq, thw, 0, 1, true, std::nullopt, 0,
                                                    1.0, at::IntArrayRef(axes));
    EXPECT_TRUE(at::equal(out, plain));
  }
}

}  // namespace
