// The attention layers in C++: against the formula, with masks, padding, caches, gradients.

#include <posenc/posenc.h>

#include "attention/slow_attention.h"
#include "support/support.h"

namespace {

using posenc::nn::ALiBiAttention;
using posenc::nn::ALiBiAttentionOptions;
using posenc::nn::AttentionInputs;
using posenc::nn::KVCache;
using posenc::nn::RoPEAttention;
using posenc::nn::RoPEAttentionOptions;
using posenc::test::AttentionCase;
using posenc::test::error_of;
using posenc::test::finite_error;
using posenc::test::max_error;
using posenc::test::slow_attention;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What the layer must give, from its own projections and the slow formula.
template <typename Layer>
at::Tensor slow_layer(Layer& layer, const at::Tensor& x, const AttentionCase& c, bool rotate) {
  const int64_t heads = layer->options.n_heads(), kv = layer->options.n_kv_heads().value_or(heads);
  const auto split = [&](const at::Tensor& t, int64_t n) {
    return t.unflatten(-1, {n, -1}).transpose(1, 2).to(at::kDouble);
  };
  at::Tensor q = split(layer->query_proj(x), heads), k = split(layer->key_proj(x), kv),
             v = split(layer->value_proj(x), kv);
  if constexpr (requires { layer->inv_freq; }) {
    if (rotate) {
      q = posenc::rotary_embedding(q, layer->inv_freq, std::nullopt, 0, 2,
                                   layer->options.interleaved());
      k = posenc::rotary_embedding(k, layer->inv_freq, std::nullopt, 0, 2,
                                   layer->options.interleaved());
    }
  }
  const at::Tensor out = slow_attention(q, k, v, c).out;
  return layer->out_proj(out.to(x.scalar_type()).transpose(1, 2).flatten(2));
}

template <typename Layer>
struct Traits;
template <>
struct Traits<ALiBiAttention> {
  using Options = ALiBiAttentionOptions;
  static std::vector<double> slopes(int64_t heads) { return posenc::alibi_slopes(heads); }
};
template <>
struct Traits<RoPEAttention> {
  using Options = RoPEAttentionOptions;
  static std::vector<double> slopes(int64_t heads) { return std::vector<double>(heads, 0.0); }
};

template <typename Layer>
class AttentionLayer : public testing::Test {
 protected:
  using Options = typename Traits<Layer>::Options;
  static Layer make(bool causal, std::optional<int64_t> kv = std::nullopt) {
    torch::manual_seed(1);
    Layer layer(Options(48, 6).is_causal(causal).n_kv_heads(kv));
    layer->eval();
    return layer;
  }
  static AttentionCase plain(bool causal) { return {Traits<Layer>::slopes(6), causal}; }
};

using Layers = testing::Types<ALiBiAttention, RoPEAttention>;
TYPED_TEST_SUITE(AttentionLayer, Layers);

TYPED_TEST(AttentionLayer, IsTheFormula) {
  for (const bool causal : {false, true}) {
    for (const std::optional<int64_t> kv : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
      auto layer = this->make(causal, kv);
      const at::Tensor x = torch::randn({2, 21, 48});
      EXPECT_LT(max_error(layer(x), slow_layer(layer, x, this->plain(causal), true)), 1e-5);
    }
  }
}

TYPED_TEST(AttentionLayer, HasTheFourProjectionsAndNothingElse) {
  auto layer = this->make(false);
  const auto names = layer->named_parameters().keys();
  EXPECT_EQ(names.size(), 8);
  for (const char* name :
       {"query_proj.weight", "key_proj.bias", "value_proj.weight", "out_proj.bias"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  EXPECT_TRUE(layer->buffers().empty());
  std::ostringstream text;
  text << layer;
  EXPECT_NE(text.str().find("d_model=48, n_heads=6"), std::string::npos) << text.str();
}

TYPED_TEST(AttentionLayer,
           TakesTheArticlesMask) {  // 0 blocks, any dtype; a blocked row gives zeros: faults M2, M9
  for (const bool causal : {false, true}) {
    auto layer = this->make(causal);
    const at::Tensor x = torch::randn({2, 9, 48});
    at::Tensor keep = torch::rand({2, 1, 9, 9}) > 0.4;
    keep.select(2, 3).fill_(false);
    AttentionCase c = this->plain(causal);
    c.mask = keep;
    const at::Tensor want = slow_layer(layer, x, c, true);
    EXPECT_TRUE(at::allclose(want[0][3], layer->out_proj(at::zeros({48})), 1e-5, 1e-6));
    for (const auto dtype : {at::kBool, at::kInt, at::kFloat}) {
      EXPECT_LT(max_error(layer(x, keep.to(dtype)), want), 1e-5);
    }
    // Gradients are finite, and a row that sees nothing passes none on.
    const at::Tensor in = x.detach().clone().requires_grad_();
    const at::Tensor out = layer(in, keep);
    EXPECT_TRUE(torch::autograd::grad({out.square().sum()}, {in}, {}, true)[0]
                    .isfinite()
                    .all()
                    .item<bool>());
    EXPECT_TRUE((torch::autograd::grad({out.select(1, 3).sum()}, {in})[0] == 0).all().item<bool>());
  }
}

TYPED_TEST(AttentionLayer,
           PaddingChangesNothing) {  // faults K1, A7: left and right, NaN in the padding too
  auto layer = this->make(true);
  const at::Tensor x = torch::randn({1, 5, 48}), want = layer(x);
  for (const bool left : {true, false}) {
    at::Tensor padded = at::full({1, 8, 48}, kNaN), padding = at::zeros({1, 8}, at::kLong);
    const int64_t at = left ? 3 : 0;
    padded.narrow(1, at, 5).copy_(x);
    padding.narrow(1, at, 5).fill_(1);
    const at::Tensor out = layer->forward(padded, std::nullopt, std::nullopt, padding);
    EXPECT_LT(max_error(out.narrow(1, at, 5), want), 1e-5);
  }
}

TYPED_TEST(AttentionLayer, PrefillAndStepsEqualOnePass) {  // faults M8, K2
  for (const bool padded : {false, true}) {
    auto layer = this->make(true, 3);
    const at::Tensor x = torch::randn({2, 90, 48});
    at::Tensor padding = at::ones({2, 90}, at::kBool);
    if (padded) {
      padding.narrow(1, 0, 4).select(0, 1).fill_(false);
    }
    const std::optional<at::Tensor> mask =
        padded ? std::optional<at::Tensor>(padding) : std::nullopt;
    const at::Tensor whole = layer->forward(x, std::nullopt, std::nullopt, mask);
    for (const bool recorded : {true, false}) {
      c10::AutoGradMode mode(recorded);
      KVCache cache;
      std::vector<at::Tensor> parts;
      int64_t done = 0;
      for (const int64_t step : {70, 1, 1, 5, 1, 12}) {
        AttentionInputs inputs;
        if (padded) {
          inputs.key_padding_mask = padding.narrow(1, 0, done + step);
        }
        parts.push_back(layer->forward_cached(x.narrow(1, done, step), cache, inputs));
        done += step;
        EXPECT_EQ(cache.size(), done);
      }
      const at::Tensor got = at::cat(parts, 1);
      const int64_t from = padded ? 4 : 0;
      EXPECT_LT(max_error(got.narrow(1, from, 90 - from), whole.narrow(1, from, 90 - from)), 1e-5);
    }
  }
}

TYPED_TEST(AttentionLayer, BiasAndDropoutTakeTheDensePath) {
  for (const bool causal : {false, true}) {
    auto layer = this->make(causal);
    const at::Tensor x = torch::randn({2, 7, 48});
    EXPECT_LT(max_error(layer->forward(x, std::nullopt, at::zeros({6, 7, 7})), layer(x)), 1e-5);
    // A bias of −infinity is a mask.
    const at::Tensor keep = (torch::rand({7, 7}) > 0.3).logical_or(at::eye(7).to(at::kBool));
    const at::Tensor bias =
        at::zeros({7, 7}).masked_fill(keep.logical_not(), -std::numeric_limits<double>::infinity());
    EXPECT_LT(max_error(layer->forward(x, std::nullopt, bias), layer(x, keep)), 1e-5);
    EXPECT_LT(max_error(layer->forward(x, keep, at::zeros({1, 1, 7, 7})), layer(x, keep)), 1e-5);
  }
  using Options = typename TestFixture::Options;
  TypeParam layer(Options(48, 6).dropout(0.5));
  const at::Tensor x = torch::randn({1, 30, 48});
  EXPECT_FALSE(at::allclose(layer(x), layer(x)));
  layer->eval();
  EXPECT_TRUE(at::equal(layer(x), layer(x)));
}

TYPED_TEST(AttentionLayer, TrainsClonesAndChangesDtype) {
  auto layer = this->make(true);
  const at::Tensor x = torch::randn({2, 9, 48}), y = torch::randn({2, 9, 48});
  TypeParam copy(std::dynamic_pointer_cast<typename TypeParam::ContainedType>(layer->clone()));
  torch::optim::AdamW optimizer(layer->parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (layer(x) - y).square().mean();
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first);
  EXPECT_GT(max_error(layer(x), copy(x)), 1e-3);  // the clone has its own weights
  layer->to(at::kBFloat16);
  EXPECT_EQ(layer(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

TYPED_TEST(AttentionLayer, AnyLengthAndClearErrors) {  // faults A14
  auto layer = this->make(true);
  EXPECT_EQ(layer(torch::randn({1, 3000, 48})).size(1), 3000);
  EXPECT_EQ(layer(torch::randn({1, 0, 48})).size(1), 0);
  std::string text = error_of([&] { layer(torch::randn({1, 3, 40})); });
  EXPECT_NE(text.find("expected x of shape (B, L, 48)"), std::string::npos) << text;
  text = error_of([&] {
    layer->forward(torch::randn({1, 3, 48}), std::nullopt, std::nullopt, at::ones({1, 4}));
  });
  EXPECT_NE(text.find("key_padding_mask of shape (1, 3)"), std::string::npos) << text;
  text = error_of([&] { layer(torch::randn({1, 3, 48}), at::ones({2, 3})); });
  EXPECT_NE(text.find("broadcasts to (B, H, L, S) = (1, 6, 3, 3)"), std::string::npos) << text;
  using Options = typename TestFixture::Options;
  EXPECT_THROW(TypeParam(Options(50, 6)), c10::ValueError);
  EXPECT_THROW(TypeParam(Options(48, 6).n_kv_heads(4)), c10::ValueError);
}

TEST(KVCacheTest, KeepsKeyNormsAndSurvivesInferenceMode) {  // faults B9
  torch::manual_seed(2);
  KVCache cache;
  const auto part = [](int64_t n) { return torch::randn({1, 2, n, 8}); };
  {
    c10::InferenceMode guard;
    cache.append(part(70), part(70), at::Tensor(), /*track_norms=*/true);
  }
  for (const int64_t n : {1, 57, 1, 100}) {
    cache.append(part(n), part(n), at::Tensor(), true);
    EXPECT_TRUE(
        at::equal(cache.key_norms(), posenc::alibi_key_norms(cache.keys(), cache.values())));
  }
  EXPECT_EQ(cache.size(), 229);
  EXPECT_FALSE(cache.positions().defined());
  const std::string text = error_of([&] {
    cache.append(torch::randn({1, 3, 1, 8}), torch::randn({1, 3, 1, 8}), {}, true);
  });
  EXPECT_NE(text.find("KVCache: expected keys of shape (1, 2, L, 8)"), std::string::npos) << text;
  cache.clear();
  EXPECT_EQ(cache.size(), 0);
}

}  // namespace
