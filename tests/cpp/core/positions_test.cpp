#include <posenc/posenc.h>

#include "support/support.h"

namespace {

using posenc::test::error_of;

at::Tensor longs(std::vector<int64_t> values) { return torch::tensor(values, torch::kLong); }

TEST(Positions, CountRealTokensOfAPaddedBatch) {  // K1
  EXPECT_TRUE(posenc::positions_from_mask(longs({0, 0, 1, 1, 1})).equal(longs({0, 0, 0, 1, 2})));
  const auto right = posenc::positions_from_mask(torch::tensor({{true, true, true, false, false}}));
  EXPECT_TRUE(right.slice(1, 0, 3).equal(longs({0, 1, 2}).unsqueeze(0)));
}

TEST(Positions, RestartInEachPackedDocument) {  // K5
  EXPECT_TRUE(posenc::positions_from_cu_seqlens(longs({0, 4, 8}), 8)
                  .equal(longs({0, 1, 2, 3, 0, 1, 2, 3})));
  EXPECT_TRUE(
      posenc::positions_from_cu_seqlens(longs({0, 2, 2, 5}), 5).equal(longs({0, 1, 0, 1, 2})));
  const auto ids = posenc::positions_from_documents(longs({1, 1, 2, 2, 2, 0}));
  EXPECT_TRUE(ids.equal(longs({0, 1, 0, 1, 2, 0})));
}

TEST(Positions, RowsOfABatchDecodeAtTheirOwnPlace) {  // K2
  EXPECT_TRUE(posenc::positions_from_offsets(longs({5, 3}), 2)
                  .equal(torch::tensor({{5, 6}, {3, 4}}, torch::kLong)));
}

TEST(Positions, ContextParallelRanksCoverTheSequenceOnce) {
  for (const bool zigzag : {false, true}) {
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < 4; ++rank) {
      parts.push_back(posenc::positions_for_context_parallel(64, rank, 4, zigzag));
    }
    EXPECT_TRUE(std::get<0>(at::cat(parts).sort()).equal(at::arange(64)));
  }
  EXPECT_TRUE(posenc::positions_for_context_parallel(8, 1, 2, true).equal(longs({2, 3, 4, 5})));
}

TEST(Positions, ErrorsSayWhatWasExpectedAndWhatCame) {
  EXPECT_NE(error_of([] {
              posenc::positions_for_context_parallel(10, 0, 4);
            }).find("divisible by 4, got 10"),
            std::string::npos);
  EXPECT_NE(error_of([] { posenc::positions_from_offsets(torch::rand({3}), 2); }).find("integer"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              posenc::positions_from_mask(torch::ones({2, 3, 4}));
            }).find("[2, 3, 4]"),
            std::string::npos);
}

}  // namespace
