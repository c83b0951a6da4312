// Keys that were rotated and stay: shift and re_rotate; and q, k, v packed in one tensor.

#include <posenc/posenc.h>

#include "support/support.h"

namespace {

using posenc::nn::RotaryPositionalEmbedding;
using posenc::nn::RotaryPositionalEmbeddingOptions;
using posenc::test::error_of;
using posenc::test::max_error;

bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

posenc::RopeScaling dynamic_ntk() {
  return posenc::RopeScaling::from_dict({{"rope_type", std::string("dynamic")},
                                         {"factor", 2.0},
                                         {"original_max_position_embeddings", int64_t(8)}});
}

TEST(RotaryCache, ShiftMovesKeysWithoutTheirFactor) {  // K8, K11, L6
  torch::manual_seed(1);
  RotaryPositionalEmbedding rope(
      RotaryPositionalEmbeddingOptions(12).rotary_dim(8).rotary_start(2).attention_factor(1.5));
  const at::Tensor keys = torch::randn({2, 6, 3, 12}, at::kDouble);
  const at::Tensor cached = rope(keys, std::nullopt, int64_t(10));
  EXPECT_LT(max_error(rope->shift(cached, -4), rope(keys, std::nullopt, int64_t(6))), 1e-13);
  EXPECT_TRUE(rope->shift(cached, 0).equal(cached));
  const at::Tensor delta = torch::tensor({3, -2});
  const at::Tensor at = at::arange(10, 16).unsqueeze(0) + delta.unsqueeze(1);
  EXPECT_LT(max_error(rope->shift(cached, delta), rope(keys, std::optional<at::Tensor>(at))),
            1e-13);
  EXPECT_TRUE(
      has(error_of([&] { rope->shift(cached, at::zeros({3}, at::kLong)); }), "expected delta"));
  RotaryPositionalEmbedding axes(
      RotaryPositionalEmbeddingOptions(4).axes(std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(has(error_of([&] {
                    axes->shift(torch::randn({1, 2, 1, 4}), 1);
                  }),
                  "one position axis"));  // K10
}

TEST(RotaryCache, ShiftTurnsTheLayoutThatWasWritten) {
  RotaryPositionalEmbedding rope(RotaryPositionalEmbeddingOptions(8).interleaved_out(false));
  const at::Tensor x = torch::randn({2, 5, 3, 8}, at::kDouble);
  const at::Tensor key = rope->forward(x, std::nullopt, 6);
  const at::Tensor each = torch::tensor({-6, -6, -5, 0, 2}).unsqueeze(0);
  EXPECT_LT(max_error(rope->shift(key, each), rope->forward(x, torch::tensor({0, 1, 3, 9, 12}))),
            1e-13);
}

TEST(RotaryCache, ReRotateFollowsTheLength) {  // S2
  torch::manual_seed(2);
  RotaryPositionalEmbedding rope(RotaryPositionalEmbeddingOptions(8).scaling(dynamic_ntk()));
  const at::Tensor keys = torch::randn({1, 16, 2, 8}, at::kDouble);
  const at::Tensor cached = rope(keys.narrow(1, 0, 6));
  const auto before = rope->inv_freq_at(6), after = rope->inv_freq_at(16);
  EXPECT_EQ(before, rope->frequencies.inv_freq);
  EXPECT_LT(after[1], before[1]);
  const at::Tensor want = rope(keys).narrow(1, 0, 6);
  EXPECT_LT(max_error(rope->re_rotate(cached, before, after), want), 1e-13);
  const at::Tensor row = rope->inv_freq_at(torch::tensor({16}));
  EXPECT_EQ(row.sizes(), (std::vector<int64_t>{1, 1, 4}));
  EXPECT_LT(max_error(rope->re_rotate(cached, before, row), want), 1e-13);
  EXPECT_TRUE(has(error_of([&] { rope->re_rotate(cached, before); }), "inv_freq_at"));
  EXPECT_TRUE(has(error_of([&] { rope->shift(cached, 1); }), "inv_freq_at"));
  EXPECT_TRUE(has(error_of([&] {
                    posenc::re_rotate(keys, {1.0, 0.5}, at::ArrayRef<double>{1.0});
                  }),
                  "1 and 2"));
}

TEST(RotaryPacked, RotatesQAndKAndPassesV) {
  torch::manual_seed(3);
  RotaryPositionalEmbedding rope(RotaryPositionalEmbeddingOptions(16).interleaved(false));
  const auto freq = rope->frequencies.inv_freq;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    // A slice of a wider projection, grouped heads.
    const at::Tensor wide = torch::randn({2, 70, 9, 16}).to(dtype);
    at::Tensor qkv = wide.narrow(2, 1, 8);
    const at::Tensor want = at::cat({rope(qkv.narrow(2, 0, 6)), qkv.narrow(2, 6, 2)}, 2);
    EXPECT_TRUE(rope->rotate_packed(qkv, 2).equal(want));
    const at::Tensor outside = wide.select(2, 0).clone();
    posenc::rotary_embedding_qkv_(qkv, freq, 4, 2, {}, 0, 1, false);
    EXPECT_TRUE(qkv.equal(want));
    EXPECT_TRUE(wide.select(2, 0).equal(outside));

    const at::Tensor three = torch::randn({2, 70, 3, 4, 16}).to(dtype);
    const at::Tensor out = rope->rotate_packed(three);
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(out.select(2, i).equal(rope(three.select(2, i))));
    }
    EXPECT_TRUE(out.select(2, 2).equal(three.select(2, 2)));
  }
  const at::Tensor qkv = torch::randn({1, 2, 8, 16});
  EXPECT_TRUE(has(error_of([&] { rope->rotate_packed(qkv); }), "n_kv_heads"));
  EXPECT_TRUE(has(error_of([&] { posenc::rotary_embedding_qkv(qkv, freq, 2, 2); }), "got 8"));
  EXPECT_TRUE(
      has(error_of([&] { posenc::rotary_embedding_qkv(qkv, freq, 4, 2, {}, 0, 2); }), "seq_dim 1"));
}

}  // namespace
