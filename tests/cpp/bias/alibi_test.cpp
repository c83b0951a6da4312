// ALiBi's slopes, bias matrix and softmax against the formulas in float64.

#include <posenc/posenc.h>

#include <cmath>

#include "support/support.h"

namespace {

using posenc::test::error_of;
using posenc::test::max_error;
using posenc::test::rounding;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 5e-8) << i;
  }
}

TEST(AlibiSlopes, AnyHeadCount) {  // faults A1, A2
  expect_near(posenc::alibi_slopes(8),
              {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
  expect_near(posenc::alibi_slopes(6), {1. / 4, 1. / 16, 1. / 64, 1. / 256, 1. / 2, 1. / 8});
  expect_near(posenc::alibi_slopes(12),
              {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.70710678,
               0.35355339, 0.17677670, 0.08838835});
  expect_near(posenc::alibi_slopes(3), {1. / 16, 1. / 256, 1. / 4});
  expect_near(posenc::alibi_slopes(1), {1. / 256});
  const auto plain = posenc::alibi_slopes(6, 8, 0, std::nullopt, /*geometric=*/true);
  expect_near({plain[0], plain[5]}, {std::exp2(-8. / 6), 1. / 256});
  expect_near(posenc::alibi_slopes(2, /*bias_max=*/16), {1. / 256, 1. / 65536});
}

TEST(AlibiSlopes, TensorParallelRanksSliceOneList) {  // faults A8
  expect_near(posenc::alibi_slopes(4, 8, /*head_start=*/4, /*total_heads=*/8),
              {1. / 32, 1. / 64, 1. / 128, 1. / 256});
  const auto all = posenc::alibi_slopes(12);
  const auto rank = posenc::alibi_slopes(6, 8, 6, 12);
  EXPECT_EQ(rank, std::vector<double>(all.begin() + 6, all.end()));
  const std::string text = error_of([] { posenc::alibi_slopes(4, 8, 4); });
  EXPECT_NE(text.find("alibi_slopes: expected heads"), std::string::npos) << text;
  EXPECT_THROW(posenc::alibi_slopes(0), c10::ValueError);
  EXPECT_THROW(posenc::alibi_slopes(4, -1), c10::ValueError);
}

/// From the formula, in float64.
at::Tensor slow_bias(const std::vector<double>& slopes, int64_t q_len, int64_t k_len,
                     int64_t offset, bool causal) {
  at::Tensor bias = at::empty({static_cast<int64_t>(slopes.size()), q_len, k_len}, at::kDouble);
  auto b = bias.accessor<double, 3>();
  for (size_t h = 0; h < slopes.size(); ++h) {
    for (int64_t i = 0; i < q_len; ++i) {
      for (int64_t j = 0; j < k_len; ++j) {
        b[h][i][j] = causal && j > i + offset
                         ? -kInfinity
                         : -slopes[h] * std::abs(static_cast<double>(i + offset - j));
      }
    }
  }
  return bias;
}

TEST(AlibiBias, IsTheFormulaRoundedOnce) {
  const auto slopes = posenc::alibi_slopes(12);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool causal : {false, true}) {
      for (const auto& [q, k] : {std::pair<int64_t, int64_t>{5, 5}, {3, 70}, {40, 7}, {0, 4}}) {
        const at::Tensor got = posenc::alibi_bias(slopes, q, k, std::nullopt, causal, dtype);
        EXPECT_EQ(got.scalar_type(), dtype);
        const at::Tensor exact = slow_bias(slopes, q, k, k - q, causal);
        const at::Tensor want =
            dtype == at::kDouble
                ? exact
                : at::tensor(slopes, at::kDouble).to(at::kFloat).view({-1, 1, 1}) *
                      (exact / at::tensor(slopes, at::kDouble).view({-1, 1, 1})).to(at::kFloat);
        EXPECT_TRUE(at::equal(got, want.to(dtype)));
      }
      EXPECT_TRUE(
          at::allclose(posenc::alibi_bias(slopes, 4, 4, c10::SymInt(1000000), causal, at::kDouble),
                       slow_bias(slopes, 4, 4, 1000000, causal)));
    }
  }
  EXPECT_EQ(posenc::alibi_bias(slopes, 2, 2).scalar_type(), at::kFloat);
}

TEST(AlibiBias, SlopesAsATensorHaveGradients) {
  const at::Tensor slopes = torch::rand({2, 3}, at::kDouble).requires_grad_();
  const at::Tensor bias = posenc::alibi_bias(slopes, 3, 4, std::nullopt, /*is_causal=*/true);
  EXPECT_EQ(bias.sizes(), (at::IntArrayRef{2, 3, 3, 4}));
  const at::Tensor g = torch::randn_like(bias);
  const at::Tensor grad = torch::autograd::grad({bias}, {slopes}, {g})[0];
  const at::Tensor unit = slow_bias({1.0}, 3, 4, 1, true)[0].nan_to_num(0, 0, 0);
  EXPECT_LT(max_error(grad, (g * unit).sum({2, 3})), 1e-13);
}

TEST(AlibiSoftmax, IsTheFormulaInEveryDtype) {
  torch::manual_seed(1);
  const auto slopes = posenc::alibi_slopes(3);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [q, k] : {std::pair<int64_t, int64_t>{5, 5}, {3, 70}, {1, 33}}) {
      at::Tensor mask = torch::rand({2, 3, q, k}) > 0.3;
      mask.select(2, 0).fill_(false);
      for (const bool causal : {false, true}) {
        for (const std::optional<at::Tensor>& m :
             {std::optional<at::Tensor>(), std::optional<at::Tensor>(mask),
              std::optional<at::Tensor>(mask.narrow(2, q - 1, 1).narrow(1, 0, 1))}) {
          const at::Tensor x =
              torch::randn({2, k, q, 3}).to(dtype).permute({0, 3, 2, 1}).requires_grad_();
          const at::Tensor y = posenc::alibi_softmax(x, slopes, m, causal, 0.7);
          EXPECT_EQ(y.scalar_type(), dtype);
          const at::Tensor wide = x.detach().to(at::kDouble).requires_grad_();
          at::Tensor weights = (wide * 0.7 + slow_bias(slopes, q, k, k - q, causal)).exp();
          if (m) {
            weights = weights.masked_fill(m->logical_not(), 0);
          }
          const at::Tensor sum = weights.sum(-1, true);
          const at::Tensor want = weights / sum.masked_fill(sum == 0, 1);
          EXPECT_LT(max_error(y, want), 8 * rounding(dtype));
          const at::Tensor g = torch::randn_like(y);
          const at::Tensor a = torch::autograd::grad({y}, {x}, {g})[0];
          const at::Tensor b = torch::autograd::grad({want}, {wide}, {g.to(at::kDouble)})[0];
          EXPECT_LT(max_error(a, b), 20 * rounding(dtype));
        }
      }
    }
  }
}

TEST(AlibiSoftmax, MaskedScoresAreNotTouched) {  // faults M3, M5, M6, A7
  const std::vector<double> half = {0.5};
  const at::Tensor mask = at::tensor({0, 0, 1, 1, 1}).to(at::kBool);
  at::Tensor scores = at::zeros({1, 1, 5, 5});
  scores.select(3, 0).fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor weights = posenc::alibi_softmax(scores, half, mask, /*is_causal=*/true);
  EXPECT_TRUE(at::allclose(weights[0][0][4],
                           at::tensor({0., 0., 0.186324, 0.307196, 0.506480}, at::kFloat), 1e-5,
                           1e-6));
  EXPECT_TRUE((weights[0][0][1] == 0).all().item<bool>());
  const at::Tensor allowed = at::tensor({-12000.0, 0.0}).to(at::kHalf).view({1, 1, 1, 2});
  const at::Tensor one = posenc::alibi_softmax(allowed, half, at::tensor({1, 0}).to(at::kBool));
  EXPECT_TRUE(at::equal(one.flatten(), at::tensor({1.0, 0.0}).to(at::kHalf)));
}

TEST(AlibiSoftmax, SecondDerivativeAndErrors) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({1, 2, 3, 4}, at::kDouble).requires_grad_();
  const auto slopes = posenc::alibi_slopes(2);
  const auto twice = [&](bool ours) {
    const at::Tensor y = ours ? posenc::alibi_softmax(x, slopes)
                              : at::softmax(x + slow_bias(slopes, 3, 4, 1, false), -1);
    const at::Tensor g =
        torch::autograd::grad({y.square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({g.square().sum()}, {x})[0];
  };
  EXPECT_LT(max_error(twice(true), twice(false)), 1e-13);
  const std::string text = error_of([&] { posenc::alibi_softmax(x.detach(), {0.5}); });
  EXPECT_NE(text.find("alibi_softmax: expected 2 slopes"), std::string::npos) << text;
  EXPECT_THROW(posenc::alibi_softmax(x.detach(), slopes, torch::ones({3, 4})), c10::TypeError);
}

}  // namespace
