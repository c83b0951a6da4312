// rotary_embedding and apply_rotary against a loop written from the formula, in float64.

#include <posenc/posenc.h>

#include <cmath>

#include "support/support.h"

namespace {

using posenc::test::error_of;
using posenc::test::max_error;
using posenc::test::rounding;

/// x (B, L, H, D) with time on axis 1, positions (B, L).
at::Tensor rotate_slowly(const at::Tensor& x, const std::vector<double>& freq,
                         const at::Tensor& positions, bool pairs_in, bool pairs_out, int64_t start,
                         double factor, bool inverse) {
  const at::Tensor in = x.to(at::kDouble).contiguous();
  at::Tensor out = in.clone();
  const auto a = in.accessor<double, 4>();
  auto y = out.accessor<double, 4>();
  const at::Tensor where = positions.to(at::kDouble).expand({x.size(0), x.size(1)}).contiguous();
  const auto p = where.accessor<double, 2>();
  const int64_t n = freq.size();
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t l = 0; l < x.size(1); ++l) {
      for (int64_t h = 0; h < x.size(2); ++h) {
        for (int64_t i = 0; i < n; ++i) {
          const double angle = p[b][l] * freq[i] * (inverse ? -1 : 1);
          const double c = factor * std::cos(angle), s = factor * std::sin(angle);
          const double lo = a[b][l][h][start + (pairs_in ? 2 * i : i)];
          const double hi = a[b][l][h][start + (pairs_in ? 2 * i + 1 : n + i)];
          y[b][l][h][start + (pairs_out ? 2 * i : i)] = lo * c - hi * s;
          y[b][l][h][start + (pairs_out ? 2 * i + 1 : n + i)] = lo * s + hi * c;
        }
      }
    }
  }
  return out;
}

struct Case {
  int64_t head_dim, rotated, start;
  bool pairs_in, pairs_out, inverse;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "D" << c.head_dim << "_rotated" << c.rotated << "_start" << c.start << "_in" << c.pairs_in
       << "_out" << c.pairs_out << "_inverse" << c.inverse;
}

class Rotary : public testing::TestWithParam<Case> {};

TEST_P(Rotary, IsTheFormulaInEveryDtype) {
  const Case c = GetParam();
  torch::manual_seed(1);
  const auto freq = posenc::rope_inv_freq(c.rotated);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = torch::randn({2, 67, 3, c.head_dim}).to(dtype);
    const at::Tensor ids = at::arange(67).unsqueeze(0) + 1000;
    const at::Tensor want =
        rotate_slowly(x, freq, ids, c.pairs_in, c.pairs_out, c.start, 1.5, c.inverse);
    const at::Tensor got = posenc::rotary_embedding(x, freq, ids, 0, 1, c.pairs_in, c.pairs_out,
                                                    c.start, 1.5, std::nullopt, c.inverse);
    EXPECT_EQ(got.scalar_type(), dtype);
    // Inputs reach 5, so outputs reach 11: sixteen roundings at 1 bound one there, with the float32
    // arithmetic before it.
    EXPECT_LT(max_error(got, want), 24 * rounding(dtype) + (dtype == at::kDouble ? 1e-12 : 0))
        << dtype;
    at::Tensor in_place = x.clone();
    posenc::rotary_embedding_(in_place, freq, ids, 0, 1, c.pairs_in, c.pairs_out, c.start, 1.5,
                              std::nullopt, c.inverse);
    EXPECT_TRUE(in_place.equal(got));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Rotary,
    testing::Values(Case{64, 64, 0, true, true, false}, Case{64, 64, 0, false, false, false},
                    Case{64, 64, 0, true, false, false}, Case{64, 64, 0, false, true, true},
                    Case{128, 64, 32, true, true, true}, Case{21, 10, 3, false, false, false},
                    Case{2, 2, 0, true, true, false}, Case{34, 18, 16, true, false, true}));

TEST(RotaryStrides, AnyLayoutGivesTheBitsOfTheContiguousOne) {
  torch::manual_seed(2);
  const auto freq = posenc::rope_inv_freq(16);
  const at::Tensor packed = torch::randn({2, 9, 3, 4, 16});
  const at::Tensor q = packed.select(2, 0);
  const at::Tensor want = posenc::rotary_embedding(q.contiguous(), freq);
  EXPECT_TRUE(posenc::rotary_embedding(q, freq).equal(want));
  EXPECT_TRUE(
      posenc::rotary_embedding(q.transpose(1, 2), freq, {}, 0, 2).transpose(1, 2).equal(want));
  EXPECT_TRUE(
      posenc::rotary_embedding(q.transpose(0, 1), freq, {}, 0, 0).transpose(0, 1).equal(want));
  EXPECT_TRUE(posenc::rotary_embedding(packed, freq).select(2, 0).equal(want));
  const at::Tensor stride_two = torch::empty({2, 9, 4, 32}).slice(3, 0, 32, 2);
  stride_two.copy_(q);
  EXPECT_TRUE(posenc::rotary_embedding(stride_two, freq).equal(want));
  const at::Tensor expanded = q.slice(2, 0, 1).expand({2, 9, 5, 16});
  EXPECT_TRUE(posenc::rotary_embedding(expanded, freq).select(2, 4).equal(want.select(2, 0)));
  at::Tensor overlapping = torch::randn({2, 9, 1, 16}).expand({2, 9, 5, 16});
  EXPECT_THROW(posenc::rotary_embedding_(overlapping, freq), c10::Error);
}

TEST(RotaryPositions, EveryFormGivesTheSameBits) {
  torch::manual_seed(3);
  const auto freq = posenc::rope_inv_freq(32);
  const at::Tensor x = torch::randn({2, 200, 2, 32});
  const at::Tensor whole = posenc::rotary_embedding(x, freq);
  const at::Tensor ids = at::arange(200);
  EXPECT_TRUE(posenc::rotary_embedding(x, freq, ids).equal(whole));
  EXPECT_TRUE(posenc::rotary_embedding(x, freq, ids.expand({2, 200})).equal(whole));
  EXPECT_TRUE(posenc::rotary_embedding(x, freq, ids.to(at::kFloat)).equal(whole));
  const std::vector<int64_t> axes{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 2, 2, 2};
  EXPECT_TRUE(posenc::rotary_embedding(x, freq, ids.expand({3, 2, 200}), 0, 1, true, {}, 0, 1.0,
                                       at::IntArrayRef(axes))
                  .equal(whole));
  const at::Tensor tensor_freq = torch::tensor(freq, at::kDouble);
  EXPECT_TRUE(posenc::rotary_embedding(x, tensor_freq).equal(whole));
  EXPECT_TRUE(posenc::rotary_embedding(x, tensor_freq.expand({1, 2, 16})).equal(whole));
  for (int64_t l = 0; l < 200; l += 37) {  // decoding one token at a time
    EXPECT_TRUE(
        posenc::rotary_embedding(x.narrow(1, l, 1), freq, {}, l).equal(whole.narrow(1, l, 1)));
  }
  EXPECT_TRUE(posenc::rotary_embedding(posenc::rotary_embedding(x, freq), freq, {}, 0, 1, true, {},
                                       0, 1.0, {}, true)
                  .allclose(x, 1e-5, 1e-6));
}

TEST(RotaryPositions, StaysExactFarOut) {  // P1, P2, P13
  const auto freq = posenc::rope_inv_freq(64);
  for (const int64_t far : {131071L, 1000003L, (1L << 24) - 1, -70000L}) {
    const at::Tensor x = torch::randn({1, 1, 1, 64});
    const at::Tensor want =
        rotate_slowly(x, freq, torch::full({1, 1}, far, at::kLong), true, true, 0, 1.0, false);
    EXPECT_LT(max_error(posenc::rotary_embedding(x, freq, {}, far), want), 1e-6) << far;
  }
}

TEST(RotaryGradient, IsTheTransposeAndLearnsFrequencies) {
  torch::manual_seed(4);
  const auto freq = posenc::rope_inv_freq(8);
  at::Tensor x = torch::randn({2, 5, 3, 8}, at::kDouble).requires_grad_();
  const at::Tensor g = torch::randn({2, 5, 3, 8}, at::kDouble);
  posenc::rotary_embedding(x, freq).backward(g);
  EXPECT_LT(max_error(x.grad(),
                      rotate_slowly(g, freq, at::arange(5).unsqueeze(0), true, true, 0, 1.0, true)),
            1e-12);

  // Frequencies by central differences.
  at::Tensor f = torch::tensor(freq, at::kDouble).requires_grad_();
  posenc::rotary_embedding(x.detach(), f, {}, 3).backward(g);
  for (int64_t i = 0; i < 4; ++i) {
    const at::Tensor step = torch::zeros({4}, at::kDouble);
    step[i] = 1e-6;
    const auto value = [&](const at::Tensor& at_f) {
      return (posenc::rotary_embedding(x.detach(), at_f, {}, 3) * g).sum().item<double>();
    };
    EXPECT_NEAR(f.grad()[i].item<double>(),
                (value(f.detach() + step) - value(f.detach() - step)) / 2e-6, 1e-7);
  }
  at::Tensor leaf = torch::randn({1, 2, 1, 8}).requires_grad_();
  EXPECT_THROW(posenc::rotary_embedding_(leaf, freq), c10::Error);
}

TEST(ApplyRotary, WithTheLayersOwnTablesIsTheRotation) {
  torch::manual_seed(5);
  const auto freq = posenc::rope_inv_freq(16);
  const at::Tensor angle =
      torch::arange(50).to(at::kDouble).unsqueeze(1) * torch::tensor(freq, at::kDouble);
  const at::Tensor cos = angle.cos().to(at::kFloat), sin = angle.sin().to(at::kFloat);
  const at::Tensor x = torch::randn({2, 4, 50, 16});
  for (const bool pairs : {false, true}) {
    const at::Tensor want = posenc::rotary_embedding(x, freq, {}, 0, 2, pairs);
    EXPECT_LT(max_error(posenc::apply_rotary(x, cos, sin, {}, 2, pairs), want), 1e-6);
    const auto twice = [&](const at::Tensor& t) {
      return pairs ? t.repeat_interleave(2, -1) : at::cat({t, t}, -1);
    };
    EXPECT_LT(
        max_error(posenc::apply_rotary(x, twice(cos), twice(sin), {}, 2, pairs, {}, 0, false, true),
                  want),
        1e-6);
    EXPECT_LT(
        max_error(posenc::apply_rotary(x, cos.unsqueeze(0), sin.unsqueeze(0), {}, 2, pairs), want),
        1e-6);
    const at::Tensor ids = torch::randint(0, 50, {2, 50}, at::kLong);
    EXPECT_LT(max_error(posenc::apply_rotary(x, cos, sin, ids, 2, pairs),
                        posenc::rotary_embedding(x, freq, ids, 0, 2, pairs)),
              1e-6);
  }
}

TEST(RotaryErrors, NameOperatorExpectationAndWhatCame) {
  const auto freq = posenc::rope_inv_freq(16);
  const auto has = [](const std::string& text, std::vector<std::string> words) {
    for (const auto& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' in: " << text;
    }
  };
  has(error_of([&] {
        posenc::rotary_embedding(torch::randn({1, 3, 2, 8}), freq);
      }),
      {"rotary_embedding", "head_dim >= 16", "got 8"});
  has(error_of([&] {
        posenc::rotary_embedding(torch::ones({1, 3, 2, 16}, at::kLong), freq);
      }),
      {"float64", "Long"});
  has(error_of([&] {
        posenc::rotary_embedding(torch::randn({2, 5, 2, 16}), freq, at::arange(4));
      }),
      {"position_ids", "[4]"});
  has(error_of([&] {
        posenc::rotary_embedding(torch::randn({2, 5, 2, 16}), freq,
                                 torch::rand({5}).to(at::kBFloat16));
      }),
      {"position_ids", "BFloat16"});
  has(error_of([&] {
        posenc::rotary_embedding(torch::randn({2, 5, 2, 16}), freq, {}, 0, 3);
      }),
      {"seq_dim", "3"});
  has(error_of([&] {
        posenc::rotary_embedding(torch::randn({2, 5, 2, 16}), torch::rand({8}));
      }),
      {"float64", "Float"});
  const at::Tensor x = torch::randn({1, 2, 5, 16}), table = torch::randn({1, 8});
  has(error_of([&] { posenc::apply_rotary(x, table, table); }),
      {"at least 5 rows", "got 1"});  // K4
  has(error_of([&] {
        posenc::apply_rotary(x, torch::randn({7, 8}), torch::randn({7, 8}),
                             torch::full({5}, 7, at::kLong));
      }),
      {"[0, 7)", "got 7"});
  has(error_of([&] {
        posenc::apply_rotary(x, torch::randn({7, 16}), torch::randn({7, 16}));
      }),
      {"doubled=True"});
  has(error_of([&] { posenc::rope_inv_freq(15); }), {"even", "15"});  // L11
  EXPECT_EQ(posenc::rotary_embedding(torch::randn({2, 0, 2, 16}), freq).numel(),
            0);  // the process goes on
}

TEST(RotaryModules, HoldOptionsAndNoTensor) {
  posenc::nn::RotaryPositionalEmbedding rope(
      posenc::nn::RotaryPositionalEmbeddingOptions(64).base(500000).interleaved(false));
  EXPECT_TRUE(rope->parameters().empty());
  EXPECT_TRUE(rope->buffers().empty());
  rope->to(at::kBFloat16);
  EXPECT_DOUBLE_EQ(rope->frequencies.inv_freq[1], std::pow(500000.0, -2.0 / 64));
  const at::Tensor q = torch::randn({2, 7, 8, 64}), k = torch::randn({2, 7, 2, 64});
  const auto [rq, rk] = rope->rotate(q, k, {}, 3);
  EXPECT_TRUE(rq.equal(rope(q, std::nullopt, int64_t(3))));
  EXPECT_TRUE(rk.equal(posenc::rotary_embedding(k, rope->frequencies.inv_freq, {}, 3, 1, false)));
  const auto copy =
      std::dynamic_pointer_cast<posenc::nn::RotaryPositionalEmbeddingImpl>(rope->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(copy->forward(q).equal(rope(q)));
  EXPECT_NE(error_of([&] { rope->apply_rotary_pos_emb(q, 9); }).find("got 9"), std::string::npos);
  EXPECT_NE(error_of([] { posenc::nn::RotaryPositionalEmbedding(15); }).find("even"),
            std::string::npos);

  posenc::nn::LongSequenceRoPE longer(posenc::nn::LongSequenceRoPEOptions(64).chunk_size(3));
  EXPECT_TRUE(longer(q, true).equal(longer(q, false)));
  EXPECT_NE(error_of([] {
              posenc::nn::LongSequenceRoPE(posenc::nn::LongSequenceRoPEOptions(64).chunk_size(0));
            }).find("chunk_size"),
            std::string::npos);
}

}  // namespace
