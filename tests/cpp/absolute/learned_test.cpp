// add_positions, its backward operator, and the learned module.

#include <ATen/Parallel.h>
#include <posenc/absolute/learned.h>
#include <posenc/absolute/learned_module.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include "absolute/reference.h"

namespace posenc::testing {
namespace {

at::Tensor reference(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& ids,
                     int64_t offset, int64_t seq_dim) {
  const at::Tensor table = w.detach().to(at::kDouble);
  return reference_add(x, seq_dim, 1., [&](int64_t b, int64_t l, int64_t c) {
    const auto p = static_cast<int64_t>(position_at(ids, static_cast<double>(offset), b, l));
    return table[p][c].item<double>();
  });
}

TEST(AddPositions, MatchesReferenceForEveryLayoutAndDtype) {
  at::manual_seed(0);
  for (const auto dtype : kDtypes) {
    for (const int64_t d : {3, 20, 33}) {
      const auto real = at::TensorOptions(dtype);
      const at::Tensor w = at::randn({12, d}, real);
      const std::vector<std::pair<at::Tensor, int64_t>> inputs = {
          {at::randn({2, 5, d}, real), 1},
          {at::randn({5, 2, d}, real), 0},
          {at::randn({5, d}, real), -2},
          {at::randn({2, 3, 5, d}, real), 2},
          {at::randn({2, 5, 3, d}, real).transpose(1, 2), 2},
          {at::randn({2, d, 5}, real).transpose(1, 2), 1},
          {at::randn({2, 5, 2 * d}, real).slice(-1, 0, 2 * d, 2), 1},
          {at::randn({1, 5, d}, real).expand({2, 5, d}), 1}};
      for (const auto& [x, seq_dim] : inputs) {
        const at::Tensor y = add_positions(x, w, {}, 4, seq_dim);
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_EQ(y.strides(), at::empty_like(x).strides());
        expect_close(y, reference(x, w, {}, 4, seq_dim), tolerance(dtype, 8.));
        std::vector<at::Tensor> forms = {at::randint(0, 12, {5}, at::kLong),
                                         at::randint(0, 12, {1, 5}, at::kInt)};
        if (x.dim() > 2) {
          forms.push_back(at::randint(0, 12, {2, 5}, at::kLong));
          forms.push_back(at::randint(0, 12, {5, 2}, at::kLong).t());
        }
        for (const at::Tensor& ids : forms) {
          expect_close(add_positions(x, w, ids, 0, seq_dim), reference(x, w, ids, 0, seq_dim),
                       tolerance(dtype, 8.));
        }
      }
    }
  }
}

TEST(AddPositions, TableOfAnyStride) {
  const at::Tensor x = at::randn({2, 5, 6});
  const at::Tensor w = at::randn({9, 6});
  const at::Tensor want = add_positions(x, w);
  expect_same_bits(add_positions(x, w.t().contiguous().t()), want, "columns first");
  expect_same_bits(add_positions(x, at::cat({w, w}, 1).narrow(1, 6, 6)), want, "part of a row");
}

TEST(AddPositions, ChunksEqualTheWhole) {
  const at::Tensor x = at::randn({3, 90, 70}), w = at::randn({90, 70});
  const at::Tensor whole = add_positions(x, w);
  expect_same_bits(whole, x + w);
  std::vector<at::Tensor> chunks;
  for (int64_t at = 0; at < 90; at += 17) {
    chunks.push_back(add_positions(x.slice(1, at, at + 17), w, {}, at));
  }
  expect_same_bits(at::cat(chunks, 1), whole);
}

TEST(AddPositions, FaultB13OutsideTheTableIsAnErrorWithBothNumbers) {
  const at::Tensor w = at::randn({8, 4}), x = at::randn({1, 2, 4});
  expect_words(error_of<c10::IndexError>([&] {
                 add_positions(x, w, at::tensor({7, 8}, at::kLong));
               }),
               {"add_positions", "8)", "got 8"});
  expect_words(error_of<c10::IndexError>([&] {
                 add_positions(x, w, at::tensor({-1, 0}, at::kLong));
               }),
               {"add_positions", "8", "got -1"});
  expect_words(error_of<c10::IndexError>([&] {
                 add_positions(x, w, at::tensor({0, 1}, at::kLong), 7);
               }),
               {"8", "offset 7"});
  expect_words(error_of<c10::IndexError>([&] {
                 add_positions(at::randn({1, 9, 4}), w);
               }),
               {"add_positions", "8", "9"});
  expect_words(error_of<c10::IndexError>([&] { add_positions(x, w, {}, 7); }), {"8", "7"});
  expect_words(error_of<c10::IndexError>([&] { add_positions(x, w, {}, -1); }), {"8", "-1"});
  // From work that runs on several threads too, and the process goes on.
  const at::Tensor wide = at::randn({64, 512, 4});
  at::Tensor ids = at::randint(0, 8, {64, 512}, at::kLong);
  expect_same_bits(add_positions(wide, w, ids), wide + w.index({ids}));
  ids[63][511] = 1000;
  expect_words(error_of<c10::IndexError>([&] { add_positions(wide, w, ids); }), {"8", "1000"});
  expect_same_bits(add_positions(x, w), x + w.slice(0, 0, 2));
}

TEST(AddPositions, OtherErrors) {
  const at::Tensor w = at::randn({8, 4}), x = at::randn({1, 2, 4});
  expect_words(error_of<c10::TypeError>([&] { add_positions(x, w, at::zeros({2})); }),
               {"add_positions", "integer", "Float"});
  expect_words(error_of<c10::TypeError>([&] { add_positions(x, w.to(at::kHalf)); }),
               {"add_positions", "weight", "Float", "Half"});
  expect_words(error_of<c10::ValueError>([&] {
                 add_positions(x, at::randn({8, 5}));
               }),
               {"add_positions", "4", "[8, 5]"});
  expect_words(error_of<c10::ValueError>([&] { add_positions(x, w, at::zeros({3}, at::kLong)); }),
               {"add_positions", "position_ids", "[3]"});
}

TEST(AddPositions, ZeroSizes) {
  const at::Tensor w = at::randn({8, 4}).requires_grad_();
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 3, 4}, {2, 0, 4}, {2, 3, 0, 4}}) {
    const at::Tensor x = at::empty(shape).requires_grad_();
    const at::Tensor y = add_positions(x, w);
    EXPECT_EQ(y.sizes(), c10::IntArrayRef(shape));
    w.mutable_grad() = at::Tensor();
    y.sum().backward();
    EXPECT_EQ(w.grad().abs().sum().item<double>(), 0.);
  }
}

TEST(AddPositions, GradientsOfInputAndTable) {
  const at::Tensor w = at::randn({6, 3}, at::kDouble);
  const std::vector<std::tuple<at::Tensor, OptionalTensor, int64_t, int64_t>> cases = {
      {at::randn({2, 4, 3}, at::kDouble), std::nullopt, 1, 1},
      {at::randn({4, 2, 3}, at::kDouble), std::nullopt, 2, 0},
      {at::randn({2, 4, 3}, at::kDouble), at::tensor({0, 5, 5, 1}, at::kLong), 0, 1},
      {at::randn({2, 4, 3}, at::kDouble), at::randint(0, 5, {2, 4}, at::kLong), 1, 1},
      {at::randn({4, 2, 3}, at::kDouble), at::randint(0, 5, {2, 4}, at::kInt), 1, 0},
      {at::randn({4, 3}, at::kDouble), at::randint(0, 5, {1, 4}, at::kLong), 0, 0},
      {at::randn({2, 2, 4, 2, 3}, at::kDouble), at::randint(0, 6, {2, 4}, at::kLong), 0, 2}};
  for (const auto& [x, ids, offset, seq_dim] : cases) {
    const auto over_w = [&, &x = x, &ids = ids, &offset = offset,
                         &seq_dim = seq_dim](const at::Tensor& t) {
      return add_positions(x, t, ids, offset, seq_dim);
    };
    const auto over_x = [&, &ids = ids, &offset = offset, &seq_dim = seq_dim](const at::Tensor& t) {
      return add_positions(t, w, ids, offset, seq_dim);
    };
    expect_gradient(over_w, w);
    expect_gradient(over_x, x);
    // Second order: the gradient of (y^2 w).sum() by w, once more.
    const at::Tensor leaf = w.clone().requires_grad_();
    const at::Tensor g = torch::autograd::grad({over_w(leaf).pow(3).sum()}, {leaf}, {}, true,
                                               /*create_graph=*/true)[0];
    const at::Tensor got = torch::autograd::grad({g.pow(2).sum()}, {leaf})[0];
    const at::Tensor eager = w.clone().requires_grad_();
    at::Tensor index =
        ids.has_value() ? ids->to(at::kLong) + offset : at::arange(4, at::kLong) + offset;
    at::Tensor rows = eager.index({index.dim() == 1 ? index.unsqueeze(0) : index});
    rows = seq_dim == 0 ? rows.transpose(0, 1) : rows;
    if (x.dim() == 2) {
      rows = rows.select(1, 0);
    }
    if (x.dim() == 5) {
      rows = rows.unsqueeze(2).unsqueeze(1);
    }
    const at::Tensor h = torch::autograd::grad({(x + rows).pow(3).sum()}, {eager}, {}, true,
                                               /*create_graph=*/true)[0];
    expect_close(got, torch::autograd::grad({h.pow(2).sum()}, {eager})[0], 1e-7, "second order");
  }
}

TEST(AddPositions, HalfGradientIsSummedInFp32) {
  // 300 rows of the same position: a sum in bfloat16 stops at 256.
  const at::Tensor w = at::zeros({2, 8}, at::kBFloat16).requires_grad_();
  const at::Tensor x = at::zeros({300, 1, 8}, at::kBFloat16);
  add_positions(x, w).sum().backward();
  EXPECT_EQ(w.grad()[0][0].item<double>(), 300.);
  w.mutable_grad() = at::Tensor();
  add_positions(x, w, at::ones({300, 1}, at::kLong)).sum().backward();
  EXPECT_EQ(w.grad()[1][7].item<double>(), 300.);
}

TEST(LearnedModule, TableAndValues) {
  at::manual_seed(1);
  nn::LearnedPositionalEncoding m(100, 128);
  const auto named = m->named_parameters();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named[0].key(), "positional_embeddings.weight");
  EXPECT_NEAR(named[0].value().std().item<double>(), 0.02, 1e-3);
  const at::Tensor x = at::randn({4, 50, 128});
  expect_same_bits(m(x).detach(), x + m->positional_embeddings->weight.detach().slice(0, 0, 50));
  expect_words(error_of<c10::IndexError>([&] { m(at::randn({1, 101, 128})); }), {"100", "101"});
}

TEST(LearnedModule, FaultE5PositionsStartWhereTheOffsetSays) {
  // pad = 1, ids [5, 6, 1, 1] -> positions [2, 3, 1, 1], as RoBERTa counts.
  nn::LearnedPositionalEncoding m(4, 2);
  const at::Tensor mask = torch::tensor({{1, 1, 0, 0}}, at::kLong);
  const at::Tensor positions = mask.cumsum(-1) * mask;
  const at::Tensor y = m->forward(at::zeros({1, 4, 2}), positions, 1);
  expect_same_bits(y[0].detach(),
                   m->positional_embeddings->weight.detach().index({at::tensor({2, 3, 1, 1})}));
}

TEST(LearnedModule, TrainsClonesPrints) {
  torch::nn::Sequential box(nn::LearnedPositionalEncoding(8, 4));
  const at::Tensor x = at::randn({2, 5, 4});
  box->forward(x).sum().backward();
  const at::Tensor grad = box->parameters()[0].grad();
  expect_close(grad.slice(0, 0, 5), at::full({5, 4}, 2.), 0.);
  EXPECT_EQ(grad.slice(0, 5).abs().sum().item<double>(), 0.);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(box->clone());
  expect_same_bits(copy->forward(x), box->forward(x));
  {
    at::NoGradGuard no_grad;
    copy->parameters()[0].add_(1.);
  }
  EXPECT_FALSE(at::equal(copy->forward(x), box->forward(x)));
  std::ostringstream text;
  text << nn::LearnedPositionalEncoding(8, 4);
  expect_words(text.str(), {"posenc::nn::LearnedPositionalEncoding(max_len=8, d_model=4"});
  expect_words(error_of<c10::ValueError>([] { nn::LearnedPositionalEncoding m(0, 4); }),
               {"max_len", "0"});
}

}  // namespace
}  // namespace posenc::testing
