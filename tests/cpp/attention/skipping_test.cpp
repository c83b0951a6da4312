// Far blocks are left out only where they cannot matter: inputs made to defeat the bound.

#include <posenc/posenc.h>

#include "attention/slow_attention.h"
#include "support/support.h"

namespace {

using posenc::test::AttentionCase;
using posenc::test::dense_reference;
using posenc::test::finite_error;
using torch::autograd::variable_list;

constexpr int64_t kLength = 1000;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Inputs {
  at::Tensor q, k, v;
};

Inputs random_inputs(int64_t heads = 8, int64_t length = kLength,
                     at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(1);
  const auto one = [&] { return torch::randn({1, heads, length, 16}).to(dtype); };
  Inputs x;
  x.q = one();
  x.k = one();
  x.v = one();
  return x;
}

/// Output and gradients against the dense formula in float64.
void check(const Inputs& in, const AttentionCase& c, double tolerance) {
  Inputs x{in.q.detach().requires_grad_(), in.k.detach().requires_grad_(),
           in.v.detach().requires_grad_()};
  Inputs wide{in.q.to(at::kDouble).detach().requires_grad_(),
              in.k.to(at::kDouble).detach().requires_grad_(),
              in.v.to(at::kDouble).detach().requires_grad_()};
  const auto [out, lse] = posenc::alibi_attention(x.q, x.k, x.v, c.slopes, c.mask, c.causal);
  const auto want = dense_reference(wide.q, wide.k, wide.v, at::tensor(c.slopes, at::kDouble), c);
  EXPECT_LT(finite_error(out, want.out), tolerance);
  const at::Tensor g = torch::randn_like(out);
  const variable_list a = torch::autograd::grad({(out * g).sum()}, {x.q, x.k, x.v});
  const variable_list b =
      torch::autograd::grad({(want.out * g.to(at::kDouble)).sum()}, {wide.q, wide.k, wide.v});
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(finite_error(a[i], b[i]), tolerance * (1 + b[i].abs().max().item<double>()))
        << "gradient " << i;
  }
}

at::Tensor blocks(const Inputs& x, bool causal) {
  return posenc::alibi_attention_blocks(x.q, x.k, x.v, posenc::alibi_slopes(x.q.size(1)),
                                        std::nullopt, causal);
}

TEST(Skipping, LeavesMostBlocksOutAndChangesNothing) {
  const Inputs x = random_inputs();
  for (const bool causal : {false, true}) {
    const at::Tensor counts = blocks(x, causal);
    const auto n = counts.accessor<int64_t, 1>();
    EXPECT_LT(n[0], 0.85 * n[1]);
    EXPECT_LT(n[2], 0.85 * n[3]);
    EXPECT_EQ(n[1], n[3]);
    check(x, {posenc::alibi_slopes(8), causal}, 1e-5);
  }
}

TEST(Skipping, FewerBlocksForHalfTypes) {
  const Inputs x = random_inputs();
  const Inputs half{x.q.to(at::kHalf), x.k.to(at::kHalf), x.v.to(at::kHalf)};
  EXPECT_LT(blocks(half, true)[0].item<int64_t>(), blocks(x, true)[0].item<int64_t>());
}

TEST(Skipping, HugeAndTinyNorms) {
  const Inputs x = random_inputs(4, 700);
  const auto slopes = posenc::alibi_slopes(4);
  check({x.q * 5, x.k * 5, x.v}, {slopes, true}, 1e-4);
  check({x.q * 1e-20, x.k * 1e-20, x.v}, {slopes, true}, 1e-5);
  check({x.q * 1e-25, x.k * 1e25, x.v}, {slopes, false}, 1e-5);  // squares under- and overflow
}

TEST(Skipping, SlopeZeroSkipsNothing) {
  const Inputs x = random_inputs(2, 700);
  const at::Tensor counts =
      posenc::alibi_attention_blocks(x.q, x.k, x.v, {0.0, 0.0}, std::nullopt, true);
  EXPECT_EQ(counts[0].item<int64_t>(), counts[1].item<int64_t>());
  EXPECT_EQ(counts[2].item<int64_t>(), counts[3].item<int64_t>());
  check(x, {{0.0, 0.0}, true}, 1e-5);
}

TEST(Skipping, EqualScoresAtFarKeys) {
  // Every key's score makes up for its distance: all keys weigh the same.
  const int64_t length = 900;
  Inputs x = random_inputs(1, length, at::kDouble);
  x.q.zero_();
  x.k.zero_();
  x.q.select(3, 0).fill_(4.0);
  x.k.select(3, 0).copy_(at::arange(length, at::kDouble).neg() *
                         0.5);  // 4·k/4 rises by 0.5 a step into the past
  check(x, {{0.5}, true}, 1e-9);
}

TEST(Skipping, AFarKeyThatWins) {
  Inputs x = random_inputs();
  const at::Tensor q = x.q[0][0][kLength - 3];
  x.k[0][0][5].copy_(2000 * q / q.norm());
  check(x, {posenc::alibi_slopes(8), true}, 1e-3);
  check(x, {posenc::alibi_slopes(8), false}, 1e-3);
}

TEST(Skipping, NaNAndInfinityAreNeverSkipped) {
  for (const double bad : {kNaN, std::numeric_limits<double>::infinity()}) {
    for (const bool in_keys : {true, false}) {
      Inputs x = random_inputs();
      (in_keys ? x.k : x.v)[0][0][7][3].fill_(bad);
      const at::Tensor out = std::get<0>(
          posenc::alibi_attention(x.q, x.k, x.v, posenc::alibi_slopes(8), std::nullopt, true));
      const at::Tensor spoilt = out[0][0].isfinite().logical_not().any(-1);
      const at::Tensor reached = spoilt.narrow(0, 7, kLength - 7);
      if (in_keys && bad == std::numeric_limits<double>::infinity()) {
        EXPECT_TRUE(
            reached.any()
                .item<bool>());  // −infinity where the sign is against it: weight 0, rightly
      } else {
        EXPECT_TRUE(reached.all().item<bool>());
      }
      EXPECT_FALSE(spoilt.narrow(0, 0, 7).any().item<bool>());
      EXPECT_TRUE(out.narrow(1, 1, 7).isfinite().all().item<bool>());
    }
  }
}

TEST(Skipping, ANaNInAFarGradientReachesItsKeys) {
  Inputs x = random_inputs(1);
  x.v.requires_grad_();
  const at::Tensor out = std::get<0>(
      posenc::alibi_attention(x.q, x.k, x.v, posenc::alibi_slopes(1), std::nullopt, true));
  at::Tensor g = torch::randn_like(out);
  g[0][0][kLength - 1][2] = kNaN;
  const at::Tensor dv = torch::autograd::grad({out}, {x.v}, {g})[0];
  EXPECT_TRUE(dv[0][0].select(1, 2).isnan().all().item<bool>());
}

TEST(Skipping, PaddingDoesNotKeepBlocksAlive) {
  // Rows without any key must not make the others look at everything.
  Inputs x = random_inputs(2, 1024);
  const at::Tensor keep = (at::arange(1024) >= 300).view({1, 1, 1, 1024});
  const std::vector<double> slopes = {0.5, 0.25};
  const at::Tensor counts = posenc::alibi_attention_blocks(x.q, x.k, x.v, slopes, keep, true);
  EXPECT_LT(counts[0].item<int64_t>(), 0.4 * counts[1].item<double>());
  check(x, {slopes, true, keep}, 1e-5);
}

TEST(KeyNorms, AreBoundsAndFlagWhatIsNotFinite) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor k = torch::randn({2, 3, 150, 9}).to(dtype),
               v = torch::randn({2, 3, 150, 5}).to(dtype);
    const at::Tensor norms = posenc::alibi_key_norms(k, v);
    EXPECT_EQ(norms.sizes(), (at::IntArrayRef{2, 3, 3}));
    const at::Tensor each = k.to(at::kDouble).norm(2, -1);
    for (int64_t block = 0; block < 3; ++block) {
      const at::Tensor most =
          each.narrow(2, 64 * block, std::min<int64_t>(64, 150 - 64 * block)).amax(-1);
      EXPECT_TRUE((norms.select(2, block).to(at::kDouble) >= most).all().item<bool>());
      EXPECT_TRUE((norms.select(2, block).to(at::kDouble) <= most * 1.01).all().item<bool>());
    }
    k[0][1][70][0] = kNaN;
    v[1][2][149][4] = -std::numeric_limits<double>::infinity();
    const at::Tensor flagged = posenc::alibi_key_norms(k, v).isinf();
    EXPECT_TRUE(flagged[0][1][1].item<bool>() && flagged[1][2][2].item<bool>());
    EXPECT_EQ(flagged.sum().item<int64_t>(), 2);
  }
}

TEST(KeyNorms, DecodeReadsOnlyNearBlocks) {
  torch::manual_seed(3);
  const auto slopes = posenc::alibi_slopes(8);
  at::Tensor q = torch::randn({2, 8, 1, 16}), k = torch::randn({2, 8, 5000, 16}),
             v = torch::randn({2, 8, 5000, 16});
  const at::Tensor norms = posenc::alibi_key_norms(k, v);
  const at::Tensor with =
      posenc::alibi_attention_blocks(q, k, v, slopes, std::nullopt, true, std::nullopt,
                                     std::nullopt, std::nullopt, std::nullopt, norms);
  EXPECT_LT(with[0].item<int64_t>(), with[1].item<int64_t>() / 2);
  const auto a = posenc::alibi_attention(q, k, v, slopes, std::nullopt, true);
  const auto b = posenc::alibi_attention(q, k, v, slopes, std::nullopt, true, std::nullopt,
                                         std::nullopt, std::nullopt, std::nullopt, norms);
  EXPECT_LT(finite_error(std::get<0>(a), std::get<0>(b)), 1e-6);
  EXPECT_LT(finite_error(std::get<1>(a), std::get<1>(b)), 1e-5);
  v[0][0][3][3] = kNaN;  // far away, and the norms know
  const at::Tensor flagged = std::get<0>(
      posenc::alibi_attention(q, k, v, slopes, std::nullopt, true, std::nullopt, std::nullopt,
                              std::nullopt, std::nullopt, posenc::alibi_key_norms(k, v)));
  EXPECT_TRUE(flagged[0][0][0][3].isnan().item<bool>());
}

}  // namespace
