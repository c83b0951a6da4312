// A model's configuration → options, from C++.

#include <posenc/posenc.h>

#include "support/support.h"

namespace posenc::nn {
namespace {

using Options = RotaryPositionalEmbeddingOptions;
using Words = std::string;

RopeDict gemma3() {
  return {{"model_type", Words("gemma3_text")},
          {"head_dim", int64_t{256}},
          {"max_position_embeddings", int64_t{131072}},
          {"rope_parameters",
           RopeDict{{"sliding_attention",
                     RopeDict{{"rope_type", Words("default")}, {"rope_theta", 10000.0}}},
                    {"full_attention", RopeDict{{"rope_type", Words("linear")},
                                                {"factor", 8.0},
                                                {"rope_theta", int64_t{1000000}}}}}}};
}

TEST(RotaryConfig, ReadsParametersNestedByTypeOfLayer) {
  const Options sliding = Options::from_dict(gemma3(), "sliding_attention");
  const Options full = Options::from_dict(gemma3(), "full_attention");
  EXPECT_EQ(sliding.frequencies().inv_freq, rope_inv_freq(256));
  const auto want = rope_inv_freq(256, 1e6);
  const auto got = full.frequencies().inv_freq;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_DOUBLE_EQ(got[i], want[i] / 8);
  }
  EXPECT_FALSE(full.interleaved());
  EXPECT_THROW(Options::from_dict(gemma3()), c10::ValueError);
  EXPECT_THROW(Options::from_dict(gemma3(), "local"), c10::ValueError);
}

TEST(RotaryConfig, KnowsTheLayoutOfAModel) {
  const Options v3 = Options::from_dict({{"model_type", Words("deepseek_v3")},
                                         {"qk_rope_head_dim", int64_t{64}},
                                         {"rope_theta", 10000.0}});
  EXPECT_EQ(v3.d_model(), 64);
  EXPECT_TRUE(v3.interleaved());
  EXPECT_EQ(v3.interleaved_out(), std::optional<bool>(false));

  const Options ernie = Options::from_dict(
      {{"model_type", Words("ernie4_5_vl_moe_text")}, {"head_dim", int64_t{128}}});
  EXPECT_EQ(ernie.theta(), 500000.0);
  ASSERT_EQ(ernie.resolved_axes().size(), 64);
  EXPECT_EQ(ernie.resolved_axes()[1], 2);
}

TEST(RotaryConfig, RefusesWhatNobodyReads) {
  for (const RopeValue& value : {RopeValue(2.0), RopeValue(Words("x")), RopeValue(true)}) {
    const RopeDict rope{{"rope_type", Words("default")}, {"factr", value}};
    try {
      Options::from_dict({{"head_dim", int64_t{16}}, {"rope_parameters", rope}});
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("factr"), std::string::npos) << error.what();
    }
  }
}

TEST(RotaryConfig, RefusesModelsAndLengthsThatItWouldHaveToGuess) {
  const RopeDict dynamic{{"rope_type", Words("dynamic")}, {"factor", 2.0}};
  const std::vector<std::pair<RopeDict, std::string>> wrong = {
      {{{"model_type", Words("dinov3_vit")}, {"head_dim", int64_t{64}}}, "dinov3_vit"},
      {{{"head_dim", int64_t{64}}, {"rope_parameters", dynamic}}, "max_position_embeddings"},
  };
  for (const auto& [config, word] : wrong) {
    try {
      Options::from_dict(config);
      ADD_FAILURE() << "no error: " << word;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(RotaryConfig, WritesWhatItReads) {
  Options options(32);
  options.rotary_dim(16).rotary_start(8).interleaved(false).base(500.0).axes(
      std::vector<int64_t>{0, 0, 1, 1, 1, 2, 2, 2});
  const Options again = Options::from_dict(options.to_dict());
  EXPECT_EQ(again.frequencies().inv_freq, options.frequencies().inv_freq);
  EXPECT_EQ(again.rotary_start(), 8);
  EXPECT_EQ(again.resolved_axes(), options.resolved_axes());
  EXPECT_FALSE(again.reads_pairs());

  RotaryPositionalEmbedding one(options), two(again);
  const auto x = torch::randn({2, 5, 3, 32});
  EXPECT_TRUE(torch::equal(one(x), two(x)));
}

}  // namespace
}  // namespace posenc::nn
