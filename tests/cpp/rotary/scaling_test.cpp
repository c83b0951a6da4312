// Scaling of RoPE's frequencies, against the values of the models' own code and of the formulas in
// float64.

#include <posenc/posenc.h>

#include "support/support.h"

namespace {

using posenc::RopeDict;
using posenc::RopeScaling;
using posenc::test::error_of;

void expect_near(const std::vector<double>& got, size_t first, const std::vector<double>& want,
                 double relative = 5e-5) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got.at(first + i), want[i], relative * std::max(1e-12, std::abs(want[i])))
        << "frequency " << first + i;
  }
}

posenc::RopeFrequencies frequencies(int64_t dim, double base, RopeDict dict,
                                    std::optional<int64_t> max_position = {}) {
  return posenc::rope_frequencies(dim, base, RopeScaling::from_dict(dict), max_position);
}

TEST(Scaling, ReferenceValues) {
  expect_near(frequencies(8, 1e4, {{"rope_type", "default"}}).inv_freq, 0, {1, .1, .01, .001});
  expect_near(frequencies(8, 1e4, {{"rope_type", "linear"}, {"factor", 4.0}}).inv_freq, 0,
              {.25, .025, .0025, .00025});
  const RopeDict yarn{
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", int64_t{2048}}};
  expect_near(frequencies(16, 1e4, yarn).inv_freq, 0,
              {1, .316228, .1, .0256935, .00625, .0013835, .00025, 7.90569e-5});
  RopeDict exact = yarn;
  exact["truncate"] = false;
  expect_near(frequencies(16, 1e4, exact).inv_freq, 0,
              {1, .316228, .1, .0238702, .00505697, .00081129, .00025, 7.90569e-5});
  const RopeDict llama{{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", int64_t{8192}}};
  expect_near(frequencies(16, 5e5, llama).inv_freq, 0,
              {1, .193923, .037606, .00729266, .000524846, 3.4281e-5, 6.64787e-6, 1.28917e-6});
  expect_near(frequencies(16, 1e6, {{"rope_type", "proportional"}, {"partial_rotary_factor", .25}})
                  .inv_freq,
              0, {1, .177828, 0, 0, 0, 0, 0, 0});
  // gpt-oss, DeepSeek-V3
  const RopeDict oss{{"rope_type", "yarn"},
                     {"factor", 32.0},
                     {"original_max_position_embeddings", int64_t{4096}},
                     {"truncate", false}};
  expect_near(frequencies(64, 150000, oss).inv_freq, 8, {.0508133, .0317057, .019335});
  EXPECT_NEAR(frequencies(64, 150000, oss).attention_factor, 1.346574, 1e-6);
  const RopeDict deepseek{{"type", "yarn"},
                          {"factor", int64_t{40}},
                          {"original_max_position_embeddings", int64_t{4096}},
                          {"mscale", 1.0},
                          {"mscale_all_dim", 1.0}};
  expect_near(frequencies(64, 1e4, deepseek).inv_freq, 8,
              {.1, .0749894, .0562341, .0390069, .0268794});
  EXPECT_DOUBLE_EQ(frequencies(64, 1e4, deepseek).attention_factor, 1.0);
  EXPECT_NEAR(posenc::yarn_mscale(40), 1.368888, 1e-6);
}

TEST(Scaling, YarnAmplitude) {  // S6, S8, S10
  RopeDict yarn{
      {"rope_type", "yarn"}, {"factor", 16.0}, {"original_max_position_embeddings", int64_t{4096}}};
  EXPECT_NEAR(frequencies(64, 1e4, yarn).attention_factor, 1.277259, 1e-6);
  yarn["attention_factor"] = 1.1;
  EXPECT_DOUBLE_EQ(frequencies(64, 1e4, yarn).attention_factor, 1.1);
  const RopeDict tiny{
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", int64_t{64}}};
  expect_near(frequencies(8, 1e4, tiny).inv_freq, 0, {1, .0625, .0025, .00025}, 1e-12);
}

TEST(Scaling, LongRopeAmplitudeAndChoice) {  // S5
  RopeDict dict{{"rope_type", "su"},
                {"factor", 32.0},
                {"original_max_position_embeddings", int64_t{4096}},
                {"short_factor", std::vector<double>{1, 2}},
                {"long_factor", std::vector<double>{4, 8}}};
  const auto f = frequencies(4, 1e4, dict);
  EXPECT_NEAR(f.attention_factor, 1.190238, 1e-6);
  expect_near(f.inv_freq, 0, {1, .005}, 1e-12);
  const at::Tensor chosen = posenc::longrope_inv_freq(
      torch::tensor({4096, 4097}, torch::kLong), f.inv_freq, f.long_inv_freq, f.trained_length);
  EXPECT_EQ(chosen.sizes(), (std::vector<int64_t>{2, 1, 2}));
  EXPECT_DOUBLE_EQ(chosen[0][0][1].item<double>(), .005);
  EXPECT_DOUBLE_EQ(chosen[1][0][1].item<double>(), .00125);
}

TEST(Scaling, DynamicNtkFollowsTheSequencesOwnLength) {  // S1, S3
  const auto rope = posenc::nn::RotaryPositionalEmbedding(
      posenc::nn::RotaryPositionalEmbeddingOptions(4).max_seq_len(8).scaling(
          RopeScaling::from_dict({{"rope_type", "dynamic"}, {"factor", 2.0}})));
  const at::Tensor f =
      posenc::dynamic_ntk_inv_freq(torch::tensor({16, 8, 4}, torch::kLong), {1.0, .01}, 2.0, 8);
  EXPECT_NEAR(f[0][0][1].item<double>(), 1.0 / 300, 1e-15);
  EXPECT_DOUBLE_EQ(f[1][0][1].item<double>(), .01);
  EXPECT_DOUBLE_EQ(f[2][0][1].item<double>(), .01);
  const at::Tensor x = torch::randn({2, 16, 3, 4});
  const at::Tensor before = rope->forward(x.narrow(1, 0, 8)), grown = rope->forward(x),
                   after = rope->forward(x.narrow(1, 0, 8));
  EXPECT_TRUE(before.equal(after));
  EXPECT_TRUE(grown.equal(posenc::rotary_embedding(x, {1.0, 1.0 / 300})));
  // One long row leaves a short one alone.
  const at::Tensor ids = at::stack({at::arange(16), at::arange(16).clamp_max(7)});
  EXPECT_TRUE(rope->forward(x, ids)[1].equal(posenc::rotary_embedding(x, {1.0, .01}, ids)[1]));
}

TEST(Scaling, DictionaryIsReadStrictlyAndWrittenBack) {
  const RopeDict llama{{"rope_type", "llama3"},
                       {"factor", int64_t{8}},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", int64_t{8192}},
                       {"rope_theta", 500000.0}};
  const auto once = RopeScaling::from_dict(llama).to_dict();
  EXPECT_EQ(RopeScaling::from_dict(once).to_dict(), once);
  const auto refused = [](RopeDict dict, std::vector<std::string> words) {
    const std::string text = error_of([&] { RopeScaling::from_dict(dict); });
    for (const auto& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' in: " << text;
    }
  };
  refused({{"rope_type", "foo"}}, {"foo", "llama3"});
  refused({{"rope_type", "linear"}, {"factor", 2.0}, {"factr", 3.0}}, {"factr", "3"});
  refused({{"rope_type", "linear"}}, {"factor"});
  refused({{"rope_type", "linear"}, {"factor", "8"}}, {"factor", "'8'"});
  refused({{"rope_type", "linear"}, {"factor", true}}, {"factor", "True"});
  refused({{"rope_type", "linear"}, {"factor", .5}}, {"factor", "0.5"});
  refused({{"rope_type", "linear"}, {"type", "dynamic"}, {"factor", 2.0}}, {"linear", "dynamic"});
  refused({{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1.0}, {"beta_slow", 32.0}},
          {"beta_fast > beta_slow"});
  refused({{"rope_type", "llama3"},
           {"factor", 8.0},
           {"low_freq_factor", 4.0},
           {"high_freq_factor", 1.0}},
          {"low_freq_factor", "4"});
  EXPECT_NO_THROW(RopeScaling::from_dict({{"rope_type", "longrope"},
                                          {"type", "su"},
                                          {"short_factor", std::vector<double>{1}},
                                          {"long_factor", std::vector<double>{1}}}));
}

}  // namespace
