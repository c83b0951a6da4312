// Keys that a cache holds, moved to other positions.

#include <posenc/posenc.h>

#include "support/support.h"

namespace {

using posenc::nn::RotaryPositionalEmbedding;
using posenc::nn::RotaryPositionalEmbeddingOptions;
using posenc::test::error_of;
using posenc::test::max_error;

TEST(RotaryShift, MovesKeysByAPureTurn) {
  // K8, K11: attention_factor is not applied again; pairs were read, halves written.
  RotaryPositionalEmbedding rope(
      RotaryPositionalEmbeddingOptions(8).interleaved_out(false).attention_factor(1.277));
  const at::Tensor x = torch::randn({2, 5, 3, 8}, at::kDouble);
  const at::Tensor key = rope->forward(x, std::nullopt, 6);
  EXPECT_LT(max_error(rope->shift(key, -2), rope->forward(x, std::nullopt, 4)), 1e-13);
  const at::Tensor each = torch::tensor({-6, -6, -5, 0, 2});
  EXPECT_LT(max_error(rope->shift(key, 0, each), rope->forward(x, torch::tensor({0, 1, 3, 9, 12}))),
            1e-13);
}

TEST(RotaryShift, RefusesSeveralAxes) {
  RotaryPositionalEmbedding rope(
      RotaryPositionalEmbeddingOptions(8).axes(std::vector<int64_t>{0, 1, 2, 0}));
  const std::string error = error_of([&] { rope->shift(torch::randn({1, 3, 2, 8}), -1); });
  EXPECT_NE(error.find("one position axis"), std::string::npos) << error;
}

}  // namespace
