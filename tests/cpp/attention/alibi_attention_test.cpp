// alibi_attention against loops from the formula, its gradients against autograd of the dense
// formula in float64.

#include <posenc/posenc.h>

#include "attention/slow_attention.h"
#include "support/support.h"

namespace {

using posenc::test::AttentionCase;
using posenc::test::dense_reference;
using posenc::test::error_of;
using posenc::test::finite_error;
using posenc::test::rounding;
using posenc::test::slow_attention;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t batch, heads, kv_heads, q_len, k_len, head_dim, v_dim;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << "B" << s.batch << "_H" << s.heads << "_Hkv" << s.kv_heads << "_L" << s.q_len << "_S"
       << s.k_len << "_D" << s.head_dim << "_Dv" << s.v_dim;
}

struct Inputs {
  at::Tensor q, k, v;
};

Inputs random_inputs(const Shape& s, at::ScalarType dtype = at::kFloat) {
  return {torch::randn({s.batch, s.heads, s.q_len, s.head_dim}).to(dtype),
          torch::randn({s.batch, s.kv_heads, s.k_len, s.head_dim}).to(dtype),
          torch::randn({s.batch, s.kv_heads, s.k_len, s.v_dim}).to(dtype)};
}

std::tuple<at::Tensor, at::Tensor> run(const Inputs& x, const AttentionCase& c) {
  return posenc::alibi_attention(x.q, x.k, x.v, c.slopes, c.mask, c.causal, c.scale,
                                 c.offset ? std::optional<c10::SymInt>(*c.offset) : std::nullopt,
                                 c.q_positions, c.k_positions);
}

/// Output and log-sum-exp against the loops, gradients of both against the dense formula.
void check(const Inputs& in, const AttentionCase& c) {
  const at::ScalarType dtype = in.q.scalar_type();
  Inputs x{in.q.detach().requires_grad_(), in.k.detach().requires_grad_(),
           in.v.detach().requires_grad_()};
  const auto [out, lse] = run(x, c);
  const auto want = slow_attention(in.q, in.k, in.v, c);
  EXPECT_EQ(out.scalar_type(), dtype);
  EXPECT_EQ(lse.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
  // Scores are rounded as numbers of their own size: where a row's nearest key is far, that is
  // slope · distance.
  const double far = 1 + want.lse.masked_fill(want.lse.isinf(), 0).abs().amax().item<double>() / 10;
  const double tolerance =
      40 * far *
      (dtype == at::kDouble ? rounding(at::kDouble)
                            : std::max(rounding(dtype) / far, rounding(at::kFloat)));
  EXPECT_LT(finite_error(out, want.out), tolerance);
  EXPECT_LT(finite_error(lse, want.lse), far * (dtype == at::kDouble ? 1e-14 : 5e-6));

  Inputs wide{in.q.detach().to(at::kDouble).requires_grad_(),
              in.k.detach().to(at::kDouble).requires_grad_(),
              in.v.detach().to(at::kDouble).requires_grad_()};
  const auto reference =
      dense_reference(wide.q, wide.k, wide.v, at::tensor(c.slopes, at::kDouble), c);
  const at::Tensor g = torch::randn_like(out), finite = lse.detach().isfinite();
  const at::Tensor gl = torch::randn_like(lse).masked_fill(finite.logical_not(), 0);
  const auto total = [&](const at::Tensor& o, const at::Tensor& l) {
    return (o * g.to(o.scalar_type())).sum() +
           (l.masked_fill(finite.logical_not(), 0) * gl.to(l.scalar_type())).sum();
  };
  const variable_list got = torch::autograd::grad({total(out, lse)}, {x.q, x.k, x.v});
  const variable_list expected =
      torch::autograd::grad({total(reference.out, reference.lse)}, {wide.q, wide.k, wide.v});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(got[i].scalar_type(), dtype);
    const double size = 1 + expected[i].abs().max().item<double>();
    EXPECT_LT(finite_error(got[i], expected[i]), tolerance * size) << "gradient " << i;
  }
}

class AlibiAttention : public testing::TestWithParam<Shape> {};

TEST_P(AlibiAttention, IsTheFormulaInEveryDtype) {
  const Shape s = GetParam();
  torch::manual_seed(1);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool causal : {false, true}) {
      check(random_inputs(s, dtype), {posenc::alibi_slopes(s.heads), causal});
    }
  }
}

TEST_P(AlibiAttention, TakesMasksOfEveryBroadcast) {
  const Shape s = GetParam();
  torch::manual_seed(2);
  at::Tensor full = torch::rand({s.batch, s.heads, s.q_len, s.k_len}) > 0.4;
  full.select(2, s.q_len - 1).fill_(false);  // a row without keys
  for (const at::Tensor& mask :
       {full, full.narrow(1, 0, 1), full.narrow(2, 0, 1), full.select(0, 0),
        full.select(0, 0).select(0, 0), full.narrow(3, 0, 1),
        full.transpose(2, 3).contiguous().transpose(2, 3)}) {
    for (const bool causal : {false, true}) {
      check(random_inputs(s), {posenc::alibi_slopes(s.heads), causal, mask});
    }
  }
}

TEST_P(AlibiAttention, TakesOffsetsPositionsAndScale) {
  const Shape s = GetParam();
  torch::manual_seed(3);
  const auto slopes = posenc::alibi_slopes(s.heads);
  for (const int64_t offset : {int64_t{-4}, int64_t{0}, int64_t{1000}, -2 * s.k_len}) {
    AttentionCase c{slopes, /*causal=*/true};
    c.offset = offset;
    c.scale = 0.3;
    check(random_inputs(s), c);
  }
  for (const auto dtype : {at::kLong, at::kInt, at::kFloat, at::kDouble}) {
    AttentionCase c{slopes};
    c.q_positions = (torch::rand({s.batch, s.q_len}) * 300).to(dtype);
    c.k_positions = (torch::rand({s.batch, s.k_len}) * 300).to(dtype);
    for (const bool causal : {false, true}) {
      c.causal = causal;
      check(random_inputs(s), c);
    }
    c.q_positions = c.q_positions->select(0, 0);
    c.k_positions = c.k_positions->narrow(0, 0, 1);
    check(random_inputs(s), c);
  }
}

TEST_P(AlibiAttention, TakesAnyStrides) {
  const Shape s = GetParam();
  torch::manual_seed(4);
  const AttentionCase c{posenc::alibi_slopes(s.heads), /*causal=*/true};
  const Inputs x = random_inputs(s);
  const auto odd = [](const at::Tensor& t) {  // every second channel of a (B, L, H, 2D) tensor
    at::Tensor wide = at::zeros({t.size(0), t.size(2), t.size(1), 2 * t.size(3)}, t.options());
    at::Tensor view = wide.slice(3, 0, std::nullopt, 2).transpose(1, 2);
    return view.copy_(t);
  };
  check({odd(x.q), odd(x.k), odd(x.v)}, c);
  check({x.q.transpose(1, 2).contiguous().transpose(1, 2),
         x.k.transpose(2, 3).contiguous().transpose(2, 3), x.v},
        c);
  // Expanded over heads, batch, and time (stride 0).
  check({x.q.narrow(1, 0, 1).expand(x.q.sizes()), x.k.narrow(0, 0, 1).expand(x.k.sizes()),
         x.v.narrow(2, 0, 1).expand(x.v.sizes())},
        c);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AlibiAttention,
    testing::Values(Shape{2, 3, 3, 1, 70, 16, 16},     // a decode step
                    Shape{1, 4, 2, 3, 200, 8, 8},      // a few rows, grouped
                    Shape{2, 4, 1, 21, 21, 7, 7},      // tiles of several heads, odd width
                    Shape{1, 2, 2, 70, 129, 16, 24},   // one tail, v of its own width
                    Shape{1, 2, 1, 150, 150, 33, 33},  // several tiles
                    Shape{1, 1, 1, 40, 65, 1, 1}));

TEST(AlibiAttentionEdges, GroupsRepeatAndDoNotTile) {  // faults A11
  const at::Tensor q = torch::randn({1, 4, 3, 8}), k = at::zeros({1, 2, 3, 8});
  const at::Tensor v = (at::arange(2) + 1).to(at::kFloat).view({1, 2, 1, 1}).expand({1, 2, 3, 8});
  const at::Tensor out = std::get<0>(posenc::alibi_attention(q, k, v, posenc::alibi_slopes(4)));
  const double want[4] = {1, 1, 2, 2};
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_TRUE(at::allclose(out.select(1, h), at::full({1, 3, 8}, want[h])));
  }
}

TEST(AlibiAttentionEdges, IsSymmetricWithoutACausalMask) {  // faults A5, by v = identity
  const at::Tensor zero = at::zeros({1, 1, 3, 4}), v = at::eye(3).view({1, 1, 3, 3});
  const std::vector<double> slopes = {0.5};
  const at::Tensor out = std::get<0>(posenc::alibi_attention(zero, zero, v, slopes));
  EXPECT_TRUE(at::allclose(out[0][0][1], at::tensor({0.274069, 0.451863, 0.274069}, at::kFloat),
                           1e-5, 1e-6));
  const auto [causal, lse] =
      posenc::alibi_attention(zero, zero, v, slopes, std::nullopt, /*is_causal=*/true);
  EXPECT_TRUE(at::allclose(causal[0][0][2], at::tensor({0.186324, 0.307196, 0.506480}, at::kFloat),
                           1e-5, 1e-6));
  EXPECT_NEAR(lse[0][0][2].item<double>(), std::log(1 + std::exp(-0.5) + std::exp(-1.0)),
              1e-6);  // of the true distance, A4
}

TEST(AlibiAttentionEdges, HeadsWithoutSlopeAreUniform) {  // faults A13
  const at::Tensor zero = at::zeros({1, 4, 5, 4}),
                   v = at::eye(5).view({1, 1, 5, 5}).expand({1, 4, 5, 5});
  const at::Tensor out = std::get<0>(posenc::alibi_attention(zero, zero, v, {0.5, 0.25, 0.0, 0.0}));
  EXPECT_TRUE(at::allclose(out.narrow(1, 2, 2), at::full({1, 2, 5, 5}, 0.2)));
}

TEST(AlibiAttentionEdges, StrideZeroKeysAtEveryTail) {  // faults M11
  torch::manual_seed(5);
  for (const int64_t keys : {1, 31, 33, 63, 65, 127, 129}) {
    const at::Tensor q = torch::randn({1, 4, 20, 16}), k = torch::randn({1, 1, keys, 16}),
                     v = torch::randn({1, 1, keys, 16});
    const auto slopes = posenc::alibi_slopes(4);
    const auto a =
        posenc::alibi_attention(q, k.expand({1, 4, keys, 16}), v.expand({1, 4, keys, 16}), slopes);
    const auto b = posenc::alibi_attention(q, k.expand({1, 4, keys, 16}).contiguous(),
                                           v.expand({1, 4, keys, 16}).contiguous(), slopes);
    EXPECT_TRUE(at::equal(std::get<0>(a), std::get<0>(b))) << keys;
  }
}

TEST(AlibiAttentionEdges, MaskedNaNIsNotTouched) {  // faults M6, in output and gradients
  torch::manual_seed(6);
  for (const int64_t length : {1, 20, 200}) {
    const Inputs clean = random_inputs({1, 4, 2, length, length + 100, 16, 16});
    const at::Tensor hole = at::arange(length + 100) % 7 == 0;
    const at::Tensor spread = hole.view({1, 1, -1, 1});
    const Inputs dirty{clean.q, clean.k.masked_fill(spread, kNaN),
                       clean.v.masked_fill(spread, kInfinity)};
    variable_list results[2];
    for (int i = 0; i < 2; ++i) {
      const Inputs& from = i == 0 ? clean : dirty;
      Inputs x{from.q.detach().requires_grad_(), from.k.detach().requires_grad_(),
               from.v.detach().requires_grad_()};
      const auto [out, lse] = run(x, {posenc::alibi_slopes(4), true, hole.logical_not()});
      results[i] = torch::autograd::grad({out.square().sum() + lse.sum()}, {x.q, x.k, x.v});
      results[i].push_back(out);
      results[i].push_back(lse);
    }
    for (size_t n = 0; n < results[0].size(); ++n) {
      EXPECT_LT(finite_error(results[1][n], results[0][n]), 1e-5) << length << " " << n;
    }
  }
}

TEST(AlibiAttentionEdges, FutureNaNStaysInItsRow) {
  torch::manual_seed(7);
  for (const int64_t length : {3, 150}) {
    Inputs x = random_inputs({1, 2, 2, length, length, 8, 8});
    x.k.select(2, length - 1).fill_(kNaN);
    x.v.select(2, length - 1).fill_(kNaN);
    const at::Tensor out = std::get<0>(run(x, {posenc::alibi_slopes(2), /*causal=*/true}));
    EXPECT_TRUE(out.narrow(2, 0, length - 1).isfinite().all().item<bool>());
    EXPECT_TRUE(out.select(2, length - 1).isnan().all().item<bool>());
  }
}

TEST(AlibiAttentionEdges, EmptyInputs) {
  const auto slopes = posenc::alibi_slopes(2);
  for (const Shape& s :
       {Shape{0, 2, 2, 3, 3, 4, 4}, Shape{1, 2, 2, 0, 3, 4, 4}, Shape{1, 2, 2, 3, 0, 4, 4}}) {
    Inputs x = random_inputs(s);
    x.q.requires_grad_();
    x.k.requires_grad_();
    const auto [out, lse] = run(x, {slopes, true});
    EXPECT_EQ(out.sizes(), x.q.sizes());
    EXPECT_TRUE((out == 0).all().item<bool>());
    EXPECT_TRUE((lse == -kInfinity).all().item<bool>());
    const auto grads = torch::autograd::grad({out.sum()}, {x.q, x.k});
    EXPECT_EQ(grads[1].sizes(), x.k.sizes());
  }
}

TEST(AlibiAttentionEdges, OutputIsLaidOutAsTheQuery) {
  const at::Tensor q = torch::randn({2, 5, 3, 8}).transpose(1, 2);
  const at::Tensor out = std::get<0>(posenc::alibi_attention(q, q, q, posenc::alibi_slopes(3)));
  EXPECT_EQ(out.strides(), q.strides());
  EXPECT_TRUE(out.transpose(1, 2).is_contiguous());
}

TEST(AlibiAttentionEdges, ResultsDoNotDependOnThreads) {
  torch::manual_seed(8);
  const Inputs in = random_inputs({1, 4, 2, 700, 700, 16, 16});
  variable_list first;
  const int threads = at::get_num_threads();
  for (const int n : {1, 2, 4, 4}) {
    at::set_num_threads(n);
    Inputs x{in.q.detach().requires_grad_(), in.k.detach().requires_grad_(),
             in.v.detach().requires_grad_()};
    const auto [out, lse] = run(x, {posenc::alibi_slopes(4), true});
    variable_list result = torch::autograd::grad({out.square().sum()}, {x.q, x.k, x.v});
    result.push_back(out);
    if (first.empty()) {
      first = result;
    }
    for (size_t i = 0; i < result.size(); ++i) {
      EXPECT_TRUE(at::equal(result[i], first[i])) << n << " threads, " << i;
    }
  }
  at::set_num_threads(threads);
}

TEST(AlibiAttentionSlopes, HaveGradients) {
  torch::manual_seed(9);
  for (const bool per_batch : {false, true}) {
    const Inputs x = random_inputs({2, 4, 2, 80, 90, 8, 8}, at::kDouble);
    const at::Tensor slopes =
        torch::rand(per_batch ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{4}, at::kDouble)
            .requires_grad_();
    AttentionCase c{{}, true, torch::rand({2, 1, 80, 90}) > 0.2};
    const auto [out, lse] = posenc::alibi_attention(x.q, x.k, x.v, slopes, c.mask, true);
    const auto want = dense_reference(x.q, x.k, x.v, slopes, c);
    EXPECT_LT(finite_error(out, want.out), 1e-12);
    const at::Tensor g = torch::randn_like(out);
    const auto a = torch::autograd::grad({(out * g).sum() + lse.sum()}, {slopes});
    const auto b = torch::autograd::grad({(want.out * g).sum() + want.lse.sum()}, {slopes});
    EXPECT_LT(finite_error(a[0], b[0]), 1e-9);
  }
}

TEST(AlibiAttentionSlopes, NegativeOnesAreNotSkippedAway) {
  torch::manual_seed(10);
  check(random_inputs({1, 2, 2, 400, 400, 8, 8}, at::kDouble), {{-0.01, -0.5}, true});
}

TEST(AlibiAttentionSecondDerivative, IsThatOfTheFormula) {
  torch::manual_seed(11);
  const Inputs in = random_inputs({1, 2, 1, 5, 6, 3, 3}, at::kDouble);
  const AttentionCase c{{0.5, 0.1}, true, torch::rand({1, 1, 5, 6}) > 0.2};
  const at::Tensor slopes = at::tensor(c.slopes, at::kDouble);
  variable_list results[2];
  const at::Tensor g = torch::randn({1, 2, 5, 3}, at::kDouble);
  for (int i = 0; i < 2; ++i) {
    Inputs x{in.q.detach().clone().requires_grad_(), in.k.detach().clone().requires_grad_(),
             in.v.detach().clone().requires_grad_()};
    const at::Tensor out =
        i == 0 ? std::get<0>(run(x, c)) : dense_reference(x.q, x.k, x.v, slopes, c).out;
    const auto first =
        torch::autograd::grad({(out * g).sum()}, {x.q, x.k, x.v}, {}, true, /*create_graph=*/true);
    results[i] = torch::autograd::grad(
        {first[0].square().sum() + first[1].sin().sum() + first[2].square().sum()},
        {x.q, x.k, x.v});
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(finite_error(results[0][i], results[1][i]), 1e-12);
  }
}

TEST(AlibiAttentionErrors, NameWhatWasExpectedAndLeaveTheProcessUsable) {
  const at::Tensor q = torch::randn({1, 8, 4, 16});
  const std::vector<double> slopes = posenc::alibi_slopes(8);
  std::string text = error_of([&] { posenc::alibi_attention(q, q, q, {1.0, 0.5, 0.25}); });
  EXPECT_NE(text.find("alibi_attention: expected 8 slopes"), std::string::npos) << text;
  EXPECT_NE(text.find("got 3"), std::string::npos) << text;
  text = error_of([&] { posenc::alibi_attention(q, q, q, slopes, torch::ones({4, 4})); });
  EXPECT_NE(text.find("bool mask"), std::string::npos) << text;
  EXPECT_NE(text.find("0.0 keeps"), std::string::npos) << text;
  text = error_of([&] {
    posenc::alibi_attention(q, q, q, slopes, torch::ones({3, 4}, at::kBool));
  });
  EXPECT_NE(text.find("(1, 8, 4, 4)"), std::string::npos) << text;
  text =
      error_of([&] { posenc::alibi_attention(q, q.narrow(1, 0, 3), q.narrow(1, 0, 3), slopes); });
  EXPECT_NE(text.find("multiple of the 3 key heads, got 8"), std::string::npos) << text;
  text = error_of([&] { posenc::alibi_attention(q, q.to(at::kHalf), q, slopes); });
  EXPECT_NE(text.find("expected k of q's dtype"), std::string::npos) << text;
  text = error_of([&] {
    posenc::alibi_attention(q, q, q, slopes, std::nullopt, false, std::nullopt, std::nullopt,
                            at::arange(3));
  });
  EXPECT_NE(text.find("q_positions of shape (4)"), std::string::npos) << text;
  text = error_of([&] {
    posenc::alibi_attention(q, q, q, slopes, std::nullopt, false, std::nullopt, c10::SymInt(1),
                            at::arange(4));
  });
  EXPECT_NE(text.find("offset or q_positions, not both"), std::string::npos) << text;
  EXPECT_THROW(posenc::alibi_attention(q.to(at::kInt), q, q, slopes), c10::TypeError);
  EXPECT_THROW(posenc::alibi_attention(q[0], q, q, slopes), c10::ValueError);
  EXPECT_TRUE(std::get<0>(posenc::alibi_attention(q, q, q, slopes)).isfinite().all().item<bool>());
}

}  // namespace
