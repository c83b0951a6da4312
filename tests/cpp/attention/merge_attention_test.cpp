// merge_attention: parts of the keys put together equal the whole, in value and gradient.

#include <posenc/posenc.h>

#include "attention/slow_attention.h"
#include "support/support.h"

namespace {

using posenc::test::error_of;
using posenc::test::finite_error;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(MergeAttention, HalvesEqualTheWhole) {  // faults A10
  torch::manual_seed(1);
  const auto slopes = posenc::alibi_slopes(4);
  const auto make = [](int64_t heads) {
    return torch::randn({2, heads, 40, 8}, at::kDouble).requires_grad_();
  };
  const at::Tensor q = make(4), k = make(2), v = make(2);
  const auto [o1, l1] = posenc::alibi_attention(q, k.narrow(2, 0, 20), v.narrow(2, 0, 20), slopes,
                                                std::nullopt, true, std::nullopt, 0);
  const auto [o2, l2] = posenc::alibi_attention(q, k.narrow(2, 20, 20), v.narrow(2, 20, 20), slopes,
                                                std::nullopt, true, std::nullopt, -20);
  EXPECT_TRUE((l2.narrow(2, 0, 20) == -kInfinity).all().item<bool>());
  const auto [out, lse] = posenc::merge_attention(o1, l1, o2, l2);
  const auto [whole, whole_lse] = posenc::alibi_attention(q, k, v, slopes, std::nullopt, true);
  EXPECT_LT(finite_error(out, whole), 1e-14);
  EXPECT_LT(finite_error(lse, whole_lse), 1e-13);
  const at::Tensor g = torch::randn_like(out), gl = torch::randn_like(lse);
  const variable_list a = torch::autograd::grad({(out * g).sum() + (lse * gl).sum()}, {q, k, v});
  const variable_list b =
      torch::autograd::grad({(whole * g).sum() + (whole_lse * gl).sum()}, {q, k, v});
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(finite_error(a[i], b[i]), 1e-13);
  }
}

TEST(MergeAttention, EmptyPartsAreSafe) {
  const at::Tensor out1 =
      at::full({1, 1, 2, 3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble)
          .requires_grad_();
  const at::Tensor out2 = torch::randn({1, 1, 2, 3}, at::kDouble).requires_grad_();
  const at::Tensor lse1 = at::full({1, 1, 2}, -kInfinity, at::kDouble).requires_grad_();
  const at::Tensor lse2 =
      at::tensor({-kInfinity, 0.5}, at::kDouble).view({1, 1, 2}).requires_grad_();
  const auto [out, lse] = posenc::merge_attention(out1, lse1, out2, lse2);
  EXPECT_TRUE((out.select(2, 0) == 0).all().item<bool>());
  EXPECT_TRUE(at::allclose(out.select(2, 1), out2.select(2, 1)));
  EXPECT_TRUE(at::equal(lse, lse2));
  for (const at::Tensor& grad :
       torch::autograd::grad({out.sum() + lse.select(2, 1).sum()}, {out1, lse1, out2, lse2})) {
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
  }
}

TEST(MergeAttention, KeepsDtypesAndNamesErrors) {
  const at::Tensor out = torch::randn({1, 2, 3, 4}).to(at::kBFloat16),
                   lse = torch::randn({1, 2, 3});
  const auto [merged, merged_lse] = posenc::merge_attention(out, lse, out, lse);
  EXPECT_EQ(merged.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(merged, out));
  EXPECT_TRUE(at::allclose(merged_lse, lse + std::log(2.0)));
  const std::string text =
      error_of([&] { posenc::merge_attention(out, lse, out, lse.narrow(2, 0, 1)); });
  EXPECT_NE(text.find("merge_attention: expected lse1 and lse2 of one shape"), std::string::npos)
      << text;
}

}  // namespace
