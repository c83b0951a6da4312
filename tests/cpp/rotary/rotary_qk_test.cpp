// rotary_embedding_qk against two calls of rotary_embedding, and the conversion of weights.

#include <posenc/posenc.h>

#include "support/support.h"

namespace {

using posenc::test::error_of;

TEST(RotaryQk, GivesTheBitsOfTwoCalls) {
  torch::manual_seed(1);
  const auto freq = posenc::rope_inv_freq(32);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor fused = torch::randn({2, 70, 8, 40}).to(dtype);
    at::Tensor q = fused.slice(2, 0, 4), k = fused.slice(2, 4, 6);
    for (const bool pairs : {true, false}) {
      const auto [q_out, k_out] =
          posenc::rotary_embedding_qk(q, k, freq, {}, 9, 1, pairs, !pairs, 8, 1.5);
      EXPECT_TRUE(q_out.equal(posenc::rotary_embedding(q, freq, {}, 9, 1, pairs, !pairs, 8, 1.5)));
      EXPECT_TRUE(k_out.equal(posenc::rotary_embedding(k, freq, {}, 9, 1, pairs, !pairs, 8, 1.5)));
    }
    const auto [q_out, k_out] = posenc::rotary_embedding_qk(q, k, freq);
    const at::Tensor rest = fused.slice(2, 6).clone();
    posenc::rotary_embedding_qk_(q, k, freq);
    EXPECT_TRUE(fused.slice(2, 0, 4).equal(q_out));
    EXPECT_TRUE(fused.slice(2, 4, 6).equal(k_out));
    EXPECT_TRUE(fused.slice(2, 6).equal(rest));
  }
}

TEST(RotaryQk, DifferentiatesEachByItself) {
  const auto freq = posenc::rope_inv_freq(8);
  const at::Tensor q = torch::randn({1, 3, 2, 8}, at::kDouble).requires_grad_();
  const at::Tensor k = torch::randn({1, 3, 1, 8}, at::kDouble).requires_grad_();
  const auto [q_out, k_out] = posenc::rotary_embedding_qk(q, k, freq);
  k_out.sum().backward({}, /*retain_graph=*/true);
  EXPECT_FALSE(q.grad().defined());
  EXPECT_TRUE(k.grad().equal(posenc::rotary_embedding(at::ones_like(k), freq, {}, 0, 1, true, {}, 0,
                                                      1.0, {}, /*inverse=*/true)));
  const auto [frozen, moving] = posenc::rotary_embedding_qk(q.detach(), k, freq);
  EXPECT_FALSE(frozen.requires_grad());
  EXPECT_TRUE(moving.requires_grad());
}

TEST(RotaryQk, NamesTheTensorThatDoesNotFit) {
  const auto freq = posenc::rope_inv_freq(8);
  const at::Tensor q = torch::randn({2, 5, 2, 8});
  EXPECT_NE(error_of([&] {
              posenc::rotary_embedding_qk(q, torch::randn({2, 4, 2, 8}), freq);
            }).find("of one length"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              posenc::rotary_embedding_qk(q, torch::randn({2, 5, 2, 6}), freq);
            }).find("6 in k"),
            std::string::npos);
}

TEST(RopeWeights, ChangeTheLayoutAndBack) {
  const at::Tensor w = torch::arange(16).reshape({16, 1});
  const at::Tensor halves = posenc::convert_rope_weights(w, 2, "half");
  EXPECT_TRUE(halves.flatten().equal(
      torch::tensor({0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15}, at::kLong)));
  EXPECT_TRUE(posenc::convert_rope_weights(halves, 2, "interleaved").equal(w));
  const at::Tensor part = posenc::convert_rope_weights(w.flatten(), 2, "half", 4, 2);
  EXPECT_TRUE(
      part.equal(torch::tensor({0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 12, 11, 13, 14, 15}, at::kLong)));
  EXPECT_NE(error_of([&] { posenc::convert_rope_weights(w, 3, "half"); }).find("3 heads"),
            std::string::npos);
}

}  // namespace
