// sinusoidal_encoding, add_sinusoidal and their module. E.., P.., B.. are known faults of other
// libraries, by the ids of the project's list.

#include <ATen/Parallel.h>
#include <posenc/absolute/sinusoidal.h>
#include <posenc/absolute/sinusoidal_module.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include "absolute/reference.h"

namespace posenc::testing {
namespace {

at::Tensor reference_encoding(const at::Tensor& ids, const std::vector<double>& f, int64_t d,
                              bool interleaved) {
  at::Tensor y = at::zeros({ids.numel(), d}, at::kDouble);
  const at::Tensor flat = ids.reshape({-1});
  for (int64_t k = 0; k < ids.numel(); ++k) {
    for (int64_t c = 0; c < d; ++c) {
      y[k][c] = encoding_at(flat[k].item<double>(), f, c, interleaved);
    }
  }
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(d);
  return y.reshape(shape);
}

at::Tensor reference(const at::Tensor& x, const std::vector<double>& f, const OptionalTensor& ids,
                     double offset, int64_t seq_dim, bool interleaved, double scale) {
  return reference_add(x, seq_dim, scale, [&](int64_t b, int64_t l, int64_t c) {
    return encoding_at(position_at(ids, offset, b, l), f, c, interleaved);
  });
}

TEST(SinusoidalFrequencies, Standard) {
  EXPECT_EQ(sinusoidal_inv_freq(4), (std::vector<double>{1., 0.01}));
  const auto f = sinusoidal_inv_freq(5);
  ASSERT_EQ(f.size(), 3u);
  EXPECT_DOUBLE_EQ(f[2], std::pow(10000., -4. / 5.));
  EXPECT_EQ(sinusoidal_inv_freq(1), std::vector<double>{1.});
}

TEST(SinusoidalFrequencies, HalfMinusOne) {
  const auto f = sinusoidal_inv_freq(8, 10000., "half_minus_one");
  ASSERT_EQ(f.size(), 4u);
  EXPECT_DOUBLE_EQ(f[1], std::exp(-std::log(10000.) / 3.));
  EXPECT_DOUBLE_EQ(f[3], 1e-4);
  EXPECT_EQ(sinusoidal_inv_freq(2, 10000., "half_minus_one"), std::vector<double>{1.});
  EXPECT_EQ(sinusoidal_inv_freq(5, 10000., "half_minus_one").size(), 2u);
}

TEST(SinusoidalFrequencies, Errors) {
  expect_words(error_of<c10::ValueError>([] { sinusoidal_inv_freq(0); }), {"d_model", "0"});
  expect_words(error_of<c10::ValueError>([] { sinusoidal_inv_freq(4, -1.); }), {"base", "-1"});
  expect_words(error_of<c10::ValueError>([] { sinusoidal_inv_freq(4, 1e4, "other"); }),
               {"spacing", "half_minus_one", "other"});
}

TEST(SinusoidalEncoding, FaultE2LayoutsAndSpacings) {
  const at::Tensor one = at::tensor({1}, at::kLong);
  const auto f = sinusoidal_inv_freq(4);
  expect_close(sinusoidal_encoding(one, f, 4)[0],
               at::tensor({0.841471, 0.540302, 0.010000, 0.999950}), 1e-6);
  expect_close(sinusoidal_encoding(one, f, 4, /*interleaved=*/false)[0],
               at::tensor({0.841471, 0.010000, 0.540302, 0.999950}), 1e-6);
  const auto g = sinusoidal_inv_freq(4, 10000., "half_minus_one");
  expect_close(sinusoidal_encoding(one, g, 4, /*interleaved=*/false)[0],
               at::tensor({0.841471, 0.000100, 0.540302, 1.000000}), 1e-6);
}

TEST(SinusoidalEncoding, FaultP10IntegerPositionsGiveFloatingOutput) {
  const at::Tensor want =
      at::tensor({0., 0.8415, 0.9093, 0.1411, -0.7568, -0.9589, -0.2794, 0.6570});
  for (const auto dtype : {at::kByte, at::kShort, at::kInt, at::kLong}) {
    const at::Tensor pe = sinusoidal_encoding(at::arange(8, dtype), {1.}, 2);
    EXPECT_EQ(pe.scalar_type(), at::kFloat);
    expect_close(pe.select(1, 0), want, 1e-4);
  }
  const at::Tensor half =
      sinusoidal_encoding(at::arange(8, at::kLong), {1.}, 2, true, at::ScalarType::Half);
  EXPECT_EQ(half.scalar_type(), at::kHalf);
  expect_close(half.select(1, 0), want, 1e-3);
}

TEST(SinusoidalEncoding, MatchesReference) {
  for (const int64_t d : {1, 2, 3, 4, 5, 7, 16, 33, 64, 127, 200}) {
    for (const bool interleaved : {true, false}) {
      for (const auto dtype : kDtypes) {
        for (const std::string spacing : {"standard", "half_minus_one"}) {
          const auto f = sinusoidal_inv_freq(d, 10000., spacing);
          for (const at::Tensor& ids :
               {at::arange(-70, 70, 13, at::kLong), at::randn({2, 3}, at::kDouble) * 50,
                at::tensor({5}, at::kInt).select(0, 0)}) {
            const at::Tensor got = sinusoidal_encoding(ids, f, d, interleaved, dtype);
            EXPECT_EQ(got.scalar_type(), dtype);
            expect_close(got, reference_encoding(ids, f, d, interleaved),
                         dtype == at::kDouble ? 3e-14 : tolerance(dtype, 1.));
          }
        }
      }
    }
  }
}

TEST(SinusoidalEncoding, FarPositionsAreExact) {
  // 1000003 rad of the fastest frequency; an fp32 phase would be off by 0.03.
  const at::Tensor ids = at::tensor({1000003, 16777217, -1000003}, at::kLong);
  const auto f = sinusoidal_inv_freq(128);
  expect_close(sinusoidal_encoding(ids, f, 128), reference_encoding(ids, f, 128, true), 1e-7);
}

TEST(SinusoidalEncoding, PositionsOfAnyShapeAndStride) {
  const auto f = sinusoidal_inv_freq(6);
  const at::Tensor ids = at::arange(24, at::kLong).reshape({4, 6}).t().slice(0, 0, 6, 2);
  expect_same_bits(sinusoidal_encoding(ids, f, 6), sinusoidal_encoding(ids.contiguous(), f, 6));
  EXPECT_EQ(sinusoidal_encoding(at::empty({0}, at::kLong), f, 6).sizes(), (c10::IntArrayRef{0, 6}));
  EXPECT_EQ(sinusoidal_encoding(at::empty({3, 0}, at::kLong), f, 6).sizes(),
            (c10::IntArrayRef{3, 0, 6}));
}

TEST(SinusoidalEncoding, GradientOfRealPositions) {
  const auto f = sinusoidal_inv_freq(5);
  const at::Tensor ids = at::randn({4}, at::kDouble) * 5;
  for (const bool interleaved : {true, false}) {
    expect_gradient(
        [&](const at::Tensor& p) {
          return sinusoidal_encoding(p, f, 5, interleaved, at::ScalarType::Double);
        },
        ids);
  }
}

TEST(SinusoidalEncoding, Errors) {
  const at::Tensor ids = at::arange(3, at::kLong);
  expect_words(error_of<c10::ValueError>([&] {
                 sinusoidal_encoding(ids, {1., .1}, 8);
               }),
               {"sinusoidal_encoding", "4", "8"});
  expect_words(error_of<c10::TypeError>([&] {
                 sinusoidal_encoding(ids.to(at::kBool), {1., .1}, 4);
               }),
               {"sinusoidal_encoding", "position_ids", "Bool"});
  expect_words(
      error_of<c10::TypeError>([&] { sinusoidal_encoding(ids, {1.}, 2, true, at::kLong); }),
      {"sinusoidal_encoding", "dtype", "Long"});
  EXPECT_EQ(sinusoidal_encoding(ids, {1.}, 2).sizes(), (c10::IntArrayRef{3, 2}));
}

// ---- add_sinusoidal

struct Layout {
  std::string name;
  at::Tensor x;
  int64_t seq_dim;
};

std::vector<Layout> layouts(at::ScalarType dtype, int64_t d) {
  const auto real = at::TensorOptions(dtype);
  const at::Tensor x = at::randn({2, 5, 3, d}, real);
  return {
      {"(B, L, d)", at::randn({2, 5, d}, real), 1},
      {"(B, L, d), from the end", at::randn({2, 5, d}, real), -2},
      {"(L, B, d)", at::randn({5, 2, d}, real), 0},
      {"(L, d)", at::randn({5, d}, real), 0},
      {"(B, L, H, d)", x, 1},
      {"(B, H, L, d)", at::randn({2, 3, 5, d}, real), 2},
      {"(B, H, L, d), transposed", x.transpose(1, 2), -2},
      {"(B, X, L, Y, Z, d)", at::randn({2, 3, 5, 2, 2, d}, real), 2},
      {"channels not side by side", at::randn({2, d, 5}, real).transpose(1, 2), 1},
      {"every second channel", at::randn({2, 5, 2 * d}, real).slice(-1, 0, 2 * d, 2), 1},
      {"part of a wider row", at::randn({2, 5, 3 * d}, real).narrow(-1, d, d), 1},
      {"expanded", at::randn({2, 1, d}, real).expand({2, 5, d}), 1},
      {"permuted", at::randn({3, 5, 2, d}, real).permute({2, 1, 0, 3}), 1},
      {"permuted, seven axes",
       at::randn({2, 2, 3, 2, 5, 2, d}, real).permute({5, 3, 1, 4, 0, 2, 6}), 3},
  };
}

TEST(AddSinusoidal, MatchesReferenceForEveryLayoutAndDtype) {
  at::manual_seed(0);
  for (const auto dtype : kDtypes) {
    for (const int64_t d : {6, 7, 40}) {
      const auto f = vaswani(d);
      for (const Layout& layout : layouts(dtype, d)) {
        const at::Tensor before = layout.x.clone();
        for (const bool interleaved : {true, false}) {
          const at::Tensor y = add_sinusoidal(layout.x, f, {}, 3, layout.seq_dim, interleaved, 1.5);
          EXPECT_EQ(y.scalar_type(), dtype);
          EXPECT_EQ(y.strides(), at::empty_like(layout.x).strides()) << layout.name;
          expect_close(y, reference(layout.x, f, {}, 3, layout.seq_dim, interleaved, 1.5),
                       tolerance(dtype, 8.), layout.name);
        }
        expect_same_bits(layout.x, before, "input unchanged");
      }
    }
  }
}

TEST(AddSinusoidal, EveryFormOfPositions) {
  const int64_t d = 10;
  const auto f = vaswani(d);
  for (const auto& [shape, seq_dim] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{
           {{2, 5, d}, 1}, {{5, 2, d}, 0}, {{2, 3, 5, d}, 2}}) {
    const at::Tensor x = at::randn(shape);
    for (const at::Tensor& ids :
         {at::tensor({4, -3, 0, 700, 2}, at::kLong), torch::tensor({{4, 3, 0, 7, 2}}, at::kInt),
          at::randint(-90, 90, {2, 5}, at::kLong), at::randn({2, 5}, at::kDouble),
          at::randn({5}, at::kFloat), at::randint(0, 9, {5, 2}, at::kLong).t()}) {
      for (const int64_t offset : {0, 11, -200}) {
        expect_close(add_sinusoidal(x, f, ids, offset, seq_dim),
                     reference(x, f, ids, static_cast<double>(offset), seq_dim, true, 1.), 1e-6);
      }
    }
  }
}

TEST(AddSinusoidal, OnePureFunctionOfPosition) {
  // Chunks, ids, other batches, thread counts and layouts: the same bits.
  const int64_t L = 300, d = 66;
  const auto f = vaswani(d);
  for (const auto dtype : kDtypes) {
    const at::Tensor x = at::randn({3, L, d}, at::kDouble).to(dtype);
    const at::Tensor whole = add_sinusoidal(x, f);
    std::vector<at::Tensor> chunks;
    for (int64_t at = 0; at < L; at += 37) {
      chunks.push_back(add_sinusoidal(x.slice(1, at, at + 37), f, {}, at));
    }
    expect_same_bits(at::cat(chunks, 1), whole, "chunks");
    expect_same_bits(add_sinusoidal(x, f, at::arange(L, at::kLong)), whole, "ids (L)");
    expect_same_bits(add_sinusoidal(x, f, at::arange(L, at::kDouble).expand({3, L})), whole,
                     "ids (B, L)");
    const at::Tensor order = at::randperm(L);
    expect_same_bits(add_sinusoidal(x.index_select(1, order), f, order),
                     whole.index_select(1, order), "another order");
    expect_same_bits(add_sinusoidal(x.transpose(0, 1), f, {}, 0, 0).transpose(0, 1), whole,
                     "sequence first");
    expect_same_bits(add_sinusoidal(x.transpose(1, 2).contiguous().transpose(1, 2), f), whole,
                     "strided channels");
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    expect_same_bits(add_sinusoidal(x, f), whole, "one thread");
    at::set_num_threads(threads);
  }
}

TEST(AddSinusoidal, SumIsTheEncodingsOwnRow) {
  const auto f = vaswani(64);
  const at::Tensor pe = sinusoidal_encoding(at::arange(100, at::kLong), f, 64);
  expect_same_bits(add_sinusoidal(at::zeros({1, 100, 64}), f)[0], pe);
  const at::Tensor x = at::randn({2, 100, 64});
  expect_same_bits(add_sinusoidal(x, f), x + pe);
}

TEST(AddSinusoidal, FaultE9TimeIsTheNamedAxis) {
  const auto f = vaswani(4);
  const at::Tensor y = add_sinusoidal(at::zeros({2, 3, 4}), f);
  expect_same_bits(y[0], y[1]);
  EXPECT_FALSE(at::equal(y[0][0], y[0][1]));
  expect_same_bits(add_sinusoidal(at::zeros({3, 2, 4}), f, {}, 0, 0).transpose(0, 1), y);
}

TEST(AddSinusoidal, FaultE6HalfStaysHalfAtEveryLength) {
  const auto f = vaswani(8);
  for (const int64_t length : {4, 9}) {
    EXPECT_EQ(add_sinusoidal(at::zeros({1, length, 8}, at::kHalf), f).scalar_type(), at::kHalf);
  }
}

TEST(AddSinusoidal, ZeroSizes) {
  const auto f = vaswani(4);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 3, 4}, {2, 0, 4}, {2, 3, 0, 4}}) {
    EXPECT_EQ(add_sinusoidal(at::empty(shape), f).sizes(), c10::IntArrayRef(shape));
  }
}

TEST(AddSinusoidal, Gradients) {
  const auto f = vaswani(5);
  const at::Tensor x = at::randn({2, 3, 5}, at::kDouble);
  const at::Tensor ids = at::randn({2, 3}, at::kDouble);
  expect_gradient([&](const at::Tensor& t) { return add_sinusoidal(t, f, ids, 2, 1, true, 0.7); },
                  x);
  expect_gradient([&](const at::Tensor& p) { return add_sinusoidal(x, f, p, 2, 1, false, 0.7); },
                  ids);
}

TEST(AddSinusoidal, DoubleBackwardAndStridedGradient) {
  const auto f = vaswani(4);
  const at::Tensor x = at::randn({2, 3, 4}, at::kDouble).requires_grad_();
  const at::Tensor y = add_sinusoidal(x, f, {}, 0, 1, true, 3.).pow(3).sum();
  const at::Tensor g = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
  const at::Tensor gg = torch::autograd::grad({g.sum()}, {x})[0];
  expect_close(gg, 6 * add_sinusoidal(x.detach(), f, {}, 0, 1, true, 3.) * 9, 1e-12);
}

TEST(AddSinusoidal, ErrorsNameOperatorExpectationAndWhatCame) {
  const auto f = vaswani(4);
  const at::Tensor x = at::randn({2, 3, 4});
  expect_words(error_of<c10::ValueError>([&] {
                 add_sinusoidal(at::randn({2, 3, 9}), f);
               }),
               {"add_sinusoidal", "d_model", "4", "9"});
  expect_words(error_of<c10::TypeError>([&] { add_sinusoidal(x.to(at::kLong), f); }),
               {"add_sinusoidal", "float32", "Long"});
  expect_words(error_of<c10::ValueError>([&] { add_sinusoidal(x, f, {}, 0, 2); }),
               {"add_sinusoidal", "seq_dim", "2"});
  expect_words(error_of<c10::ValueError>([&] { add_sinusoidal(x, f, {}, 0, 3); }),
               {"add_sinusoidal", "seq_dim", "3"});
  expect_words(error_of<c10::ValueError>([&] { add_sinusoidal(x[0], f); }),
               {"add_sinusoidal", "seq_dim"});
  expect_words(error_of<c10::ValueError>([&] { add_sinusoidal(x[0][0], f); }),
               {"add_sinusoidal", "(..., L, d_model)", "[4]"});
  expect_words(error_of<c10::ValueError>([&] { add_sinusoidal(x, f, at::arange(4)); }),
               {"add_sinusoidal", "position_ids", "(2, 3)", "[4]"});
  expect_words(error_of<c10::ValueError>([&] {
                 add_sinusoidal(x, f, at::zeros({3, 3}, at::kLong));
               }),
               {"add_sinusoidal", "position_ids", "[3, 3]"});
  // The process goes on.
  expect_close(add_sinusoidal(x, f), reference(x, f, {}, 0, 1, true, 1.), 1e-6);
}

// ---- the article's two functions

TEST(GetPositionalEncoding, Table) {
  const at::Tensor pe = get_positional_encoding(100, 128);
  EXPECT_EQ(pe.sizes(), (c10::IntArrayRef{100, 128}));
  expect_close(pe, reference_encoding(at::arange(100), vaswani(128), 128, true), 1e-7);
  const auto similarity = [](const at::Tensor& a, const at::Tensor& b) {
    return at::cosine_similarity(a, b, -1).mean().item<double>();
  };
  EXPECT_NEAR(similarity(pe.slice(0, 0, 99), pe.slice(0, 1, 100)), 0.970, 6e-4);
  EXPECT_NEAR(similarity(pe[0], pe[5]), 0.737, 6e-4);
  expect_words(error_of<c10::ValueError>([] { get_positional_encoding(-1, 4); }), {"-1"});
  expect_words(error_of<c10::ValueError>([] { get_positional_encoding(4, 0); }), {"d_model"});
}

TEST(AddPositionalEncoding, AddsUpToItsLimit) {
  const at::Tensor x = at::randn({2, 7, 6});
  expect_same_bits(add_positional_encoding(x), x + get_positional_encoding(7, 6));
  expect_same_bits(add_positional_encoding(x[0], 7), x[0] + get_positional_encoding(7, 6));
  expect_words(error_of<c10::ValueError>([&] { add_positional_encoding(x, 6); }),
               {"add_positional_encoding", "6", "7"});
  expect_words(error_of<c10::ValueError>([&] { add_positional_encoding(x[0][0]); }), {"[6]"});
}

// ---- module

TEST(SinusoidalModule, HoldsNoTensorAndEqualsTheOperator) {
  nn::SinusoidalPositionalEncoding m(
      nn::SinusoidalPositionalEncodingOptions(6).interleaved(false).scale(2.).base(500.));
  EXPECT_TRUE(m->parameters().empty());
  EXPECT_TRUE(m->buffers().empty());  // B2, B4
  const at::Tensor x = at::randn({2, 4, 6});
  const auto f = sinusoidal_inv_freq(6, 500.);
  expect_same_bits(m(x), add_sinusoidal(x, f, {}, 0, 1, false, 2.));
  expect_same_bits(m->forward(x, at::arange(4), 3), add_sinusoidal(x, f, {}, 3, 1, false, 2.));
  m->to(at::kBFloat16);  // nothing to cast
  expect_same_bits(m(x), add_sinusoidal(x, f, {}, 0, 1, false, 2.));
}

TEST(SinusoidalModule, SequentialCloneAndPrint) {
  torch::nn::Sequential box(nn::SinusoidalPositionalEncoding(6));
  const at::Tensor x = at::randn({2, 4, 6});
  expect_same_bits(box->forward(x), add_positional_encoding(x));
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(box->clone());
  expect_same_bits(copy->forward(x), add_positional_encoding(x));
  std::ostringstream text;
  text << nn::SinusoidalPositionalEncoding(6);
  expect_words(text.str(), {"posenc::nn::SinusoidalPositionalEncoding(d_model=6", "base=10000"});
}

TEST(SinusoidalModule, FaultE2SpacingOption) {
  nn::SinusoidalPositionalEncoding m(
      nn::SinusoidalPositionalEncodingOptions(4).interleaved(false).spacing("half_minus_one"));
  expect_close(m(at::zeros({1, 2, 4}))[0][1], at::tensor({0.841471, 0.000100, 0.540302, 1.000000}),
               1e-6);
}

TEST(SinusoidalModule, Errors) {
  expect_words(error_of<c10::ValueError>([] { nn::SinusoidalPositionalEncoding m(0); }), {"0"});
  expect_words(
      error_of<c10::ValueError>([] {
        nn::SinusoidalPositionalEncoding m(nn::SinusoidalPositionalEncodingOptions(4).spacing("x"));
      }),
      {"spacing", "'x'"});
}

}  // namespace
}  // namespace posenc::testing
