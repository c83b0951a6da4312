// The relatives of RoPE: xPos, the temperature of queries, trained frequencies.

#include <posenc/posenc.h>

#include <cmath>

#include "support/support.h"

namespace {

using posenc::test::error_of;
using posenc::test::max_error;

TEST(XPos, FadesByTheDistanceAlone) {
  const std::vector<double> freq = {1.0, 0.01};
  const auto options = at::TensorOptions(at::kDouble);
  for (const int64_t i : {0, 1}) {
    at::Tensor x = at::zeros({1, 1, 1, 4}, options);
    x[0][0][0][2 * i] = 1;
    const double zeta = i == 0 ? 2.0 / 7.0 : 9.0 / 14.0;
    for (const double centre : {0.0, 300.0, -1e4}) {
      const auto at = [&](int64_t position, bool is_key) {
        return posenc::xpos_embedding(x, freq, std::nullopt, position, 1, true, 0, 512, centre, 0.4,
                                      is_key);
      };
      const double dot = (at(900, false) * at(100, true)).sum().item<double>();
      EXPECT_NEAR(dot, std::pow(zeta, 800.0 / 512.0) * std::cos(800.0 * freq[i]), 1e-12);
    }
  }
}

TEST(XPos, ModuleRotatesQueriesAndKeys) {
  torch::manual_seed(0);
  posenc::nn::XPosRotaryEmbedding rope(
      posenc::nn::XPosRotaryEmbeddingOptions(16).scale_base(64).interleaved(false));
  const at::Tensor q = torch::randn({2, 5, 4, 16}), k = torch::randn({2, 5, 2, 16});
  const auto [q_out, k_out] = rope->rotate(q, k, std::nullopt, 3);
  EXPECT_TRUE(q_out.equal(rope->forward(q, std::nullopt, 3)));
  EXPECT_TRUE(k_out.equal(rope->forward(k, std::nullopt, 3, true)));
  const at::Tensor plain =
      posenc::rotary_embedding(q, rope->inv_freq, std::nullopt, 3, 1, /*interleaved=*/false);
  EXPECT_GT(max_error(q_out, plain), 1e-3);
  EXPECT_TRUE(rope->parameters().empty());
  torch::nn::Sequential model(rope);
  EXPECT_TRUE(model->forward(q).equal(rope->forward(q)));
}

TEST(XPos, RefusesPositionsThatTheScaleCannotReach) {
  posenc::nn::XPosRotaryEmbedding rope(8);
  const at::Tensor x = torch::randn({1, 1, 1, 8});
  EXPECT_TRUE(rope->forward(x, std::nullopt, 31161).isfinite().all().item<bool>());
  for (const std::string& error :
       {error_of([&] { rope->forward(x, std::nullopt, 31162); }),
        error_of([&] { rope->forward(x, at::full({1}, 31162, at::kLong)); })}) {
    EXPECT_NE(error.find("31161"), std::string::npos) << error;
    EXPECT_NE(error.find("31162"), std::string::npos) << error;
    EXPECT_NE(error.find("scale_base"), std::string::npos) << error;
  }
  EXPECT_NE(
      error_of([] {
        posenc::nn::XPosRotaryEmbedding(posenc::nn::XPosRotaryEmbeddingOptions(8).scale_base(-1));
      }).find("XPosRotaryEmbedding: expected a finite scale_base > 0, got -1"),
      std::string::npos);
}

TEST(QueryTemperature, GrowsByTheLogarithmOfThePosition) {
  posenc::nn::QueryTemperature llama4;
  const at::Tensor q = torch::randn({1, 3, 2, 4}, at::kDouble);
  const at::Tensor ids = at::tensor({8190, 8191, 16383}, at::kLong);
  const at::Tensor factor =
      at::tensor({1.0, 1 + 0.1 * std::log(2.0), 1 + 0.1 * std::log(3.0)}, at::kDouble);
  EXPECT_LT(max_error(llama4->forward(q, ids), q * factor.reshape({1, 3, 1, 1})), 1e-15);
  EXPECT_NE(error_of([&] { posenc::query_temperature(q, 0.1, 0); }).find("floor_scale > 0, got 0"),
            std::string::npos);
  EXPECT_EQ(posenc::nope_layers(6), (std::vector<bool>{false, false, false, true, false, false}));
}

TEST(LearnedRotary, BeginsAsRoPEAndLearns) {
  torch::manual_seed(0);
  for (const char* kind : {"log", "direct"}) {
    posenc::nn::LearnedRotaryEmbeddingOptions options(8);
    options.base(50).interleaved(false);
    options.parametrisation(kind);
    posenc::nn::LearnedRotaryEmbedding layer(options);
    layer->to(torch::kFloat64);
    layer->reset_parameters();
    posenc::nn::RotaryPositionalEmbedding rope(
        posenc::nn::RotaryPositionalEmbeddingOptions(8).base(50).interleaved(false));
    const at::Tensor x = torch::randn({4, 9, 2, 8}, at::kDouble);
    EXPECT_TRUE(layer->forward(x).equal(rope->forward(x))) << kind;

    std::vector<double> truth = rope->frequencies.inv_freq;
    for (double& f : truth) {
      f *= 1.1;
    }
    const at::Tensor target =
        posenc::rotary_embedding(x, truth, std::nullopt, 0, 1, /*interleaved=*/false);
    torch::optim::Adam optimizer(layer->parameters(), torch::optim::AdamOptions(1e-2));
    double first = 0, last = 0;
    for (int step = 0; step < 200; ++step) {
      const at::Tensor loss = (layer->forward(x) - target).square().mean();
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      first = step == 0 ? last : first;
    }
    EXPECT_LT(last, 1e-3 * first) << kind;
  }
}

TEST(LearnedRotary, IsNeverAHalfType) {
  torch::nn::Sequential model(posenc::nn::LearnedRotaryEmbedding(8), torch::nn::Linear(8, 8));
  model->to(torch::kBFloat16);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["0.alpha"].scalar_type(), at::kFloat);
  EXPECT_EQ(parameters["1.weight"].scalar_type(), at::kBFloat16);
  model->to(torch::kCPU, torch::kFloat16);
  EXPECT_EQ(parameters["0.alpha"].scalar_type(), at::kFloat);
  model->to(torch::kFloat64);
  EXPECT_EQ(parameters["0.alpha"].scalar_type(), at::kDouble);
  const auto copy = std::dynamic_pointer_cast<posenc::nn::LearnedRotaryEmbeddingImpl>(
      posenc::nn::LearnedRotaryEmbedding(8)->clone());
  EXPECT_TRUE(copy->alpha.is_same(copy->named_parameters()["alpha"]));
}

}  // namespace
