// RoPE over the axes of a grid: frequencies, tokens without a position, learned frequencies.

#include <posenc/posenc.h>

#include <cmath>
#include <numbers>

#include "support/support.h"

namespace {

using posenc::axial_frequencies;
using posenc::nn::AxialRotaryEmbedding;
using posenc::nn::AxialRotaryEmbeddingOptions;
using posenc::nn::MixedRotaryEmbedding;
using posenc::nn::MixedRotaryEmbeddingOptions;
using posenc::test::error_of;
using posenc::test::max_error;
using Axes = std::vector<int64_t>;

TEST(AxialFrequencies, ChannelsOfEachArrangement) {
  // D = 8: f = {1, base^(-1/2)} for each of two axes.
  const std::vector<double> two = {1, 0.1, 1, 0.1}, turns = {1, 1, 0.1, 0.1};
  const auto near = [](const std::vector<double>& got, const std::vector<double>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-15);
    }
  };
  const auto hw = axial_frequencies("half_hw", 8, 100);
  near(hw.inv_freq, two);
  EXPECT_EQ(hw.axes, (Axes{0, 0, 1, 1}));
  EXPECT_FALSE(hw.interleaved);
  EXPECT_EQ(hw.blocks, 1);
  EXPECT_EQ(hw.rotary_dim(), 8);
  EXPECT_EQ(axial_frequencies("half_wh", 8, 100).axes, (Axes{1, 1, 0, 0}));
  const auto alternating = axial_frequencies("half_alternating_wh", 8, 100);
  near(alternating.inv_freq, turns);
  EXPECT_EQ(alternating.axes, (Axes{1, 0, 1, 0}));
  const auto parity = axial_frequencies("half_parity_hw", 8, 10000);
  near(parity.inv_freq, {1, 0.01, 0.1, 0.001});
  EXPECT_EQ(parity.axes, (Axes{0, 0, 1, 1}));
  const auto pairs = axial_frequencies("pairs_wh", 8, 100);
  EXPECT_TRUE(pairs.interleaved);
  EXPECT_EQ(pairs.axes, (Axes{1, 1, 0, 0}));
  EXPECT_EQ(axial_frequencies("pairs_hw", 8).axes, (Axes{0, 0, 1, 1}));
  const auto blocks = axial_frequencies("blocks_wh", 8, 100);
  EXPECT_EQ(blocks.blocks, 2);
  EXPECT_EQ(blocks.axes, (Axes{1, 1, 0, 0}));
  // 14 // 3 = 4 channels of each axis, 2 pass through
  const auto three = axial_frequencies("half_thw", 14, 100);
  near(three.inv_freq, {1, 0.1, 1, 0.1, 1, 0.1});
  EXPECT_EQ(three.axes, (Axes{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(three.n_axes, 3);
  EXPECT_EQ(three.rotary_dim(), 12);
  near(axial_frequencies("half_hw", 8, 100, 2).inv_freq, {2, 0.2, 2, 0.2});
}

TEST(AxialFrequencies, Refuses) {
  EXPECT_NE(error_of([] { axial_frequencies("spiral", 8); }).find("spiral"), std::string::npos);
  EXPECT_NE(error_of([] { axial_frequencies("half_hw", 10); }).find("10"), std::string::npos);
  EXPECT_NE(error_of([] { axial_frequencies("half_hw", 0); }), "");
  EXPECT_NE(error_of([] { axial_frequencies("half_thw", 5); }), "");
  EXPECT_NE(error_of([] { axial_frequencies("half_hw", 8, -1); }), "");
  EXPECT_NE(error_of([] { axial_frequencies("half_hw", 8, 100, NAN); }), "");
}

TEST(AxialRotary, OneTokenByHand) {
  // Row 2, column 1, one frequency for each axis: channels (0, 2) turn by 2, (1, 3) by 1.
  AxialRotaryEmbedding rope(4);
  const at::Tensor x = torch::tensor({1., 2., 3., 4.}, at::kDouble).view({1, 1, 1, 4});
  const at::Tensor ids = torch::tensor({2, 1}).view({2, 1});
  const double c2 = std::cos(2), s2 = std::sin(2), c1 = std::cos(1), s1 = std::sin(1);
  const at::Tensor want =
      torch::tensor({c2 - 3 * s2, 2 * c1 - 4 * s1, 3 * c2 + s2, 4 * c1 + 2 * s1}, at::kDouble);
  EXPECT_LT(max_error(rope->forward(x, ids).flatten(), want), 1e-15);
  AxialRotaryEmbedding swapped(AxialRotaryEmbeddingOptions(4).arrangement("half_wh"));
  EXPECT_LT(max_error(swapped->forward(x, ids.flip(0)).flatten(), want), 1e-15);
}

TEST(AxialRotary, EndsPassBitForBit) {
  for (const char* arrangement : {"half_hw", "blocks_wh", "pairs_wh"}) {
    AxialRotaryEmbedding rope(AxialRotaryEmbeddingOptions(16)
                                  .arrangement(arrangement)
                                  .n_prefix(2)
                                  .n_suffix(1)
                                  .seq_dim(2)
                                  .offset(1));
    AxialRotaryEmbedding bare(
        AxialRotaryEmbeddingOptions(16).arrangement(arrangement).seq_dim(2).offset(1));
    const at::Tensor x = torch::randn({2, 3, 9, 16});
    const at::Tensor ids = posenc::vision_position_ids(torch::tensor({1, 2, 3}));
    const auto [q, k] = rope->rotate(x, -x, ids);
    EXPECT_TRUE(at::equal(q.narrow(2, 0, 2), x.narrow(2, 0, 2)));
    EXPECT_TRUE(at::equal(q.narrow(2, 8, 1), x.narrow(2, 8, 1)));
    EXPECT_TRUE(at::equal(q.narrow(2, 2, 6), bare->forward(x.narrow(2, 2, 6), ids)));
    EXPECT_TRUE(at::equal(k, -q));
  }
  AxialRotaryEmbedding rope(16);
  EXPECT_NE(error_of([&] {
              rope->forward(torch::randn({1, 6, 1, 16}), torch::zeros({3, 6}));
            }),
            "");
  EXPECT_NE(error_of([&] { rope->forward(torch::randn({1, 6, 1, 8}), torch::zeros({2, 6})); }), "");
}

TEST(MixedRotary, TurnsByTheSumOfAnglesAndLearns) {
  torch::manual_seed(0);
  MixedRotaryEmbedding rope(MixedRotaryEmbeddingOptions(8, 3).n_prefix(1));
  rope->to(at::kDouble);
  ASSERT_EQ(rope->freqs.sizes(), (at::IntArrayRef{2, 3, 4}));
  const at::Tensor x = torch::randn({2, 7, 3, 8}, at::kDouble);
  const at::Tensor ids = posenc::vision_position_ids(torch::tensor({1, 2, 3}));
  const at::Tensor out = rope->forward(x, ids);
  // (A, H, n) and (A, L) → (L, H, n)
  const at::Tensor angle = at::einsum("ahn,al->lhn", {rope->freqs, ids.to(at::kDouble)});
  const at::Tensor part = x.narrow(1, 1, 6).unflatten(-1, {4, 2});
  const at::Tensor lo = part.select(-1, 0), hi = part.select(-1, 1);
  const at::Tensor want =
      at::stack({lo * angle.cos() - hi * angle.sin(), hi * angle.cos() + lo * angle.sin()}, -1)
          .flatten(-2);
  EXPECT_LT(max_error(out.narrow(1, 1, 6), want), 1e-14);
  EXPECT_TRUE(at::equal(out.narrow(1, 0, 1), x.narrow(1, 0, 1)));
  const at::Tensor weight = torch::randn_like(out);
  const auto got = torch::autograd::grad({(out * weight).sum()}, {rope->freqs});
  const auto by_hand =
      torch::autograd::grad({(want * weight.narrow(1, 1, 6)).sum()}, {rope->freqs});
  EXPECT_LT(max_error(got[0], by_hand[0]), 1e-12);
}

TEST(MixedRotary, StartsAsPublished) {
  const at::Tensor freqs =
      posenc::mixed_rotary_freqs(torch::tensor({0., std::numbers::pi / 2}, at::kDouble), 4);
  const double m = std::pow(10, -0.5);
  const at::Tensor want = torch::tensor(
      {{{1., m, 0., 0.}, {0., 0., -1., -m}}, {{0., 0., 1., m}, {1., m, 0., 0.}}}, at::kDouble);
  EXPECT_LT(max_error(freqs, want), 1e-15);
  MixedRotaryEmbedding shared(MixedRotaryEmbeddingOptions(8, 3).per_head(false));
  EXPECT_EQ(shared->freqs.sizes(), (at::IntArrayRef{2, 4}));
  EXPECT_NE(error_of([] { MixedRotaryEmbedding(6, 3); }), "");
}

}  // namespace
