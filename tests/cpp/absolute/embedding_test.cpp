// embed_tokens and the token embedding.

#include <posenc/absolute/embedding.h>
#include <posenc/absolute/embedding_module.h>
#include <posenc/absolute/sinusoidal.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include "absolute/reference.h"

namespace posenc::testing {
namespace {

at::Tensor reference(const at::Tensor& tokens, const at::Tensor& w, const std::vector<double>& f,
                     const OptionalTensor& ids, double offset, bool interleaved, double scale) {
  const at::Tensor x = w.detach().to(at::kDouble).index({tokens.to(at::kLong)});
  return reference_add(x, -2, scale, [&](int64_t b, int64_t l, int64_t c) {
    return encoding_at(position_at(ids, offset, b, l), f, c, interleaved);
  });
}

TEST(EmbedTokens, MatchesReference) {
  at::manual_seed(0);
  for (const auto dtype : kDtypes) {
    for (const int64_t d : {1, 6, 7, 40}) {
      const at::Tensor w = at::randn({11, d}, at::TensorOptions(dtype));
      const auto f = vaswani(d);
      for (const at::Tensor& tokens :
           {at::randint(0, 11, {3, 5}, at::kLong), at::randint(0, 11, {3, 5}, at::kInt),
            at::randint(0, 11, {5}, at::kLong), at::randint(0, 11, {5, 3}, at::kLong).t()}) {
        std::vector<OptionalTensor> forms = {std::nullopt, at::arange(-2, 3, at::kLong),
                                             at::randn({1, 5}, at::kDouble)};
        if (tokens.dim() == 2) {
          forms.emplace_back(at::randint(-9, 99, {3, 5}, at::kLong));
        }
        for (const OptionalTensor& ids : forms) {
          for (const bool interleaved : {true, false}) {
            const at::Tensor y = embed_tokens(tokens, w, f, ids, 2, interleaved, 2.5);
            EXPECT_EQ(y.scalar_type(), dtype);
            expect_close(y, reference(tokens, w, f, ids, 2, interleaved, 2.5),
                         tolerance(dtype, 16.));
          }
        }
      }
    }
  }
}

TEST(EmbedTokens, FaultE3TheEmbeddingIsScaledNotTheEncoding) {
  const at::Tensor w = at::tensor({1., 2., 3., 4.}).reshape({1, 4}).to(at::kFloat);
  const at::Tensor id = at::zeros({1}, at::kLong);
  const auto f = vaswani(4);
  expect_same_bits(embed_tokens(id, w, f, {}, 0, true, 2.)[0],
                   at::tensor({2., 5., 6., 9.}).to(at::kFloat));
  expect_same_bits(embed_tokens(id, w, f)[0], at::tensor({1., 3., 3., 5.}).to(at::kFloat));
}

TEST(EmbedTokens, EqualsGatherThenAddAndItsOwnChunks) {
  const int64_t L = 200, d = 48;
  const auto f = vaswani(d);
  for (const auto dtype : kDtypes) {
    const at::Tensor w = at::randn({30, d}, at::kDouble).to(dtype);
    const at::Tensor tokens = at::randint(0, 30, {4, L}, at::kLong);
    const at::Tensor whole = embed_tokens(tokens, w, f, {}, 0, true, 6.5);
    expect_same_bits(whole, add_sinusoidal(w.index({tokens}), f, {}, 0, 1, true, 6.5));
    expect_same_bits(at::cat({embed_tokens(tokens.slice(1, 0, 77), w, f, {}, 0, true, 6.5),
                              embed_tokens(tokens.slice(1, 77), w, f, {}, 77, true, 6.5)},
                             1),
                     whole);
    expect_same_bits(embed_tokens(tokens, w.t().contiguous().t(), f, {}, 0, true, 6.5), whole,
                     "a table by columns");
  }
}

TEST(EmbedTokens, GradientAsTorchsEmbedding) {
  const at::Tensor w = at::randn({5, 3}, at::kDouble);
  const at::Tensor tokens = torch::tensor({{0, 4, 4}, {2, 4, 1}}, at::kLong);
  const auto f = vaswani(3);
  expect_gradient([&](const at::Tensor& t) { return embed_tokens(tokens, t, f, {}, 1, true, 1.5); },
                  w);
  const at::Tensor positions = at::randn({2, 3}, at::kDouble);
  expect_gradient([&](const at::Tensor& p) { return embed_tokens(tokens, w, f, p, 1, false, 1.5); },
                  positions);

  // padding_idx, first and second order, against at::embedding.
  const auto grads = [&](bool ours) {
    const at::Tensor leaf = w.clone().requires_grad_();
    const at::Tensor y =
        ours ? embed_tokens(tokens, leaf, f, {}, 0, true, 1.5, /*padding_idx=*/4)
             : at::embedding(leaf, tokens, 4) * 1.5 +
                   sinusoidal_encoding(at::arange(3), f, 3, true, at::ScalarType::Double);
    const at::Tensor g = torch::autograd::grad({y.pow(3).sum()}, {leaf}, {}, true,
                                               /*create_graph=*/true)[0];
    return std::make_pair(g.detach(), torch::autograd::grad({g.pow(2).sum()}, {leaf})[0]);
  };
  const auto got = grads(true), want = grads(false);
  expect_close(got.first, want.first, 1e-9);
  expect_close(got.second, want.second, 1e-9);
  EXPECT_EQ(got.first[4].abs().sum().item<double>(), 0.);
  EXPECT_GT(got.first[0].abs().sum().item<double>(), 0.);
}

TEST(EmbedTokens, HalfGradientIsSummedInFp32) {
  const at::Tensor w = at::zeros({2, 4}, at::kBFloat16).requires_grad_();
  embed_tokens(at::ones({300}, at::kLong), w, vaswani(4)).sum().backward();
  EXPECT_EQ(w.grad()[1][0].item<double>(), 300.);
}

TEST(EmbedTokens, Errors) {
  const at::Tensor w = at::randn({10, 4});
  const auto f = vaswani(4);
  const at::Tensor tokens = at::zeros({2, 3}, at::kLong);
  at::Tensor outside = tokens.clone();
  outside[1][2] = 10;
  expect_words(error_of<c10::IndexError>([&] { embed_tokens(outside, w, f); }),
               {"embed_tokens", "input_ids", "10)", "got 10"});
  outside[1][2] = -1;
  expect_words(error_of<c10::IndexError>([&] { embed_tokens(outside, w, f); }), {"10", "got -1"});
  expect_words(error_of<c10::TypeError>([&] { embed_tokens(tokens.to(at::kFloat), w, f); }),
               {"embed_tokens", "int64", "Float"});
  expect_words(error_of<c10::ValueError>([&] { embed_tokens(tokens.unsqueeze(0), w, f); }),
               {"embed_tokens", "(B, L)", "[1, 2, 3]"});
  expect_words(error_of<c10::ValueError>([&] { embed_tokens(tokens, w, {1.}); }),
               {"embed_tokens", "2", "4"});
  expect_words(error_of<c10::ValueError>([&] { embed_tokens(tokens, w, f, {}, 0, true, 1., 10); }),
               {"embed_tokens", "padding_idx", "10"});
  expect_words(error_of<c10::ValueError>([&] { embed_tokens(tokens, w, f, at::arange(4)); }),
               {"embed_tokens", "position_ids", "[4]"});
  expect_close(embed_tokens(tokens, w, f), reference(tokens, w, f, {}, 0, true, 1.), 1e-6);
  EXPECT_EQ(embed_tokens(tokens.slice(1, 0, 0), w, f).sizes(), (c10::IntArrayRef{2, 0, 4}));
}

TEST(TransformerEmbeddingModule, ScaledEmbeddingPlusTable) {
  nn::TransformerEmbedding m(10000, 512);
  const auto named = m->named_parameters();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named[0].key(), "token_embedding.weight");
  EXPECT_TRUE(m->buffers().empty());
  const at::Tensor tokens = at::randint(0, 10000, {2, 20}, at::kLong);
  const at::Tensor w = m->token_embedding->weight.detach();
  expect_close(m(tokens).detach(),
               w.index({tokens}) * std::sqrt(512.) + get_positional_encoding(20, 512), 1e-5);
  expect_same_bits(m->forward(tokens, at::arange(20), 4).detach(),
                   m->forward(tokens, {}, 4).detach());
}

TEST(TransformerEmbeddingModule, ScaleSwitchesOffPaddingStaysZero) {
  nn::TransformerEmbedding m(nn::TransformerEmbeddingOptions(6, 4).scale(1.).padding_idx(-1));
  EXPECT_EQ(m->token_embedding->weight[5].abs().sum().item<double>(), 0.);
  const at::Tensor tokens = at::tensor({0, 5, 1}, at::kLong);
  expect_same_bits(m(tokens).detach(), m->token_embedding->weight.detach().index({tokens}) +
                                           get_positional_encoding(3, 4));
  m(tokens).sum().backward();
  EXPECT_EQ(m->token_embedding->weight.grad()[5].abs().sum().item<double>(), 0.);
  EXPECT_EQ(m->token_embedding->weight.grad()[0].sum().item<double>(), 4.);
}

TEST(TransformerEmbeddingModule, SequentialClonePrintErrors) {
  torch::nn::Sequential box(nn::TransformerEmbedding(9, 4));
  const at::Tensor tokens = torch::tensor({{0, 5, 1}}, at::kLong);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(box->clone());
  expect_same_bits(copy->forward(tokens), box->forward(tokens));
  std::ostringstream text;
  text << nn::TransformerEmbedding(9, 4);
  expect_words(text.str(), {"posenc::nn::TransformerEmbedding(vocab_size=9, d_model=4", "scale=2"});
  using Options = nn::TransformerEmbeddingOptions;
  expect_words(error_of<c10::ValueError>([] { nn::TransformerEmbedding m(Options(0, 4)); }),
               {"vocab_size"});
  expect_words(
      error_of<c10::ValueError>([] { nn::TransformerEmbedding m(Options(9, 4).scale(0.)); }),
      {"scale", "0"});
  expect_words(
      error_of<c10::ValueError>([] { nn::TransformerEmbedding m(Options(9, 4).padding_idx(9)); }),
      {"padding_idx", "9"});
}

}  // namespace
}  // namespace posenc::testing
