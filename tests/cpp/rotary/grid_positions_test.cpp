// Positions of tokens in grids, and of the text around them.

#include <posenc/posenc.h>

#include "support/support.h"

namespace {

using posenc::mrope_decode_position_ids;
using posenc::mrope_position_ids;
using posenc::vision_position_ids;
using posenc::xdrope_position_ids;
using posenc::test::error_of;
using posenc::test::max_error;

at::Tensor ints(std::vector<int64_t> values, at::IntArrayRef shape) {
  return torch::tensor(values, at::kLong).view(shape);
}

TEST(VisionPositions, RowsAndColumns) {
  // L9: 2 rows of 3; token 2 is (0, 2), token 4 (1, 1)
  EXPECT_TRUE(at::equal(vision_position_ids(ints({1, 2, 3}, {1, 3})),
                        ints({0, 0, 0, 1, 1, 1, 0, 1, 2, 0, 1, 2}, {2, 6})));
  // two frames of one block of 2 × 2, then a single patch's block
  EXPECT_TRUE(at::equal(vision_position_ids(ints({2, 2, 2}, {3}), 2, /*include_time=*/true),
                        ints({0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1,  //
                              0, 1, 0, 1, 0, 1, 0, 1},
                             {3, 8})));
  // blocks of 2 × 2 in a grid of 2 × 4, the second image of the call
  EXPECT_TRUE(at::equal(vision_position_ids(ints({1, 2, 2, 1, 2, 4}, {2, 3}), 2),
                        ints({0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1,  //
                              0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3},
                             {2, 12})));
  EXPECT_EQ(vision_position_ids(torch::zeros({0, 3}, at::kLong)).sizes(), (at::IntArrayRef{2, 0}));
  EXPECT_NE(error_of([] { vision_position_ids(ints({1, 3, 2}, {1, 3}), 2); }), "");
  EXPECT_NE(error_of([] { vision_position_ids(ints({1, 3}, {2})); }), "");
}

TEST(MRope, ImageBetweenWords) {
  // K7
  const auto [ids, deltas] = mrope_position_ids(ints({0, 0, 0, 1, 1, 1, 1, 0}, {1, 8}),
                                                ints({1, 2, 2}, {1, 3}), std::nullopt, std::nullopt,
                                                /*spatial_merge_size=*/1);
  EXPECT_TRUE(at::equal(ids, ints({0, 1, 2, 3, 3, 3, 3, 5,  //
                                   0, 1, 2, 3, 3, 4, 4, 5,  //
                                   0, 1, 2, 3, 4, 3, 4, 5},
                                  {3, 1, 8})));
  EXPECT_EQ(deltas.item<int64_t>(), -2);
  EXPECT_TRUE(at::equal(mrope_decode_position_ids(ints({7}, {1}), deltas, 2),
                        ints({5, 6, 5, 6, 5, 6}, {3, 1, 2})));
}

TEST(MRope, PaddingIntervalsAndFrames) {
  // Left padding; a video of 3 frames, 1.5 positions apart.
  const at::Tensor types = ints({0, 0, 2, 2, 2, 0}, {1, 6});
  const at::Tensor mask = ints({0, 1, 1, 1, 1, 1}, {1, 6});
  const at::Tensor grid = ints({3, 1, 1}, {1, 3});
  const auto [ids, deltas] =
      mrope_position_ids(types, std::nullopt, grid, mask, 1, 1, 3.0, torch::tensor({0.5}));
  EXPECT_TRUE(at::equal(ids, ints({0, 0, 1, 2, 4, 5,  //
                                   0, 0, 1, 1, 1, 5,  //
                                   0, 0, 1, 1, 1, 5},
                                  {3, 1, 6})));
  EXPECT_EQ(deltas.item<int64_t>(), 6 - 5);
  const auto split = mrope_position_ids(types, std::nullopt, grid, mask, 1, 1, 1.0, std::nullopt,
                                        /*split_video_frames=*/true);
  EXPECT_TRUE(at::equal(std::get<0>(split)[0], ints({0, 0, 1, 2, 3, 4}, {1, 6})));
}

TEST(MRope, Refuses) {
  const at::Tensor types = ints({1, 1, 1}, {1, 3}), grid = ints({1, 2, 2}, {1, 3});
  const auto refused = [&](auto... arguments) {
    return error_of([&] { mrope_position_ids(arguments...); });
  };
  EXPECT_NE(refused(types, grid, std::nullopt, std::nullopt, 1).find("4 tokens"),
            std::string::npos);
  EXPECT_NE(refused(types).find("row 0"), std::string::npos);
  EXPECT_NE(refused(ints({0, 0}, {1, 2}), grid).find("all 1 grids"), std::string::npos);
  EXPECT_NE(refused(types, grid, std::nullopt, torch::ones({1, 2})), "");
  EXPECT_NE(refused(types, grid.to(at::kFloat)), "");
  EXPECT_NE(refused(types.to(at::kMeta), grid).find("torch.compile"), std::string::npos);
}

TEST(XDRope, ColumnsRowsAndImages) {
  const auto [ids, deltas] =
      xdrope_position_ids(ints({0, 1, 1, 1, 1, 0}, {1, 6}), ints({1, 2, 1}, {1, 3}), std::nullopt,
                          /*n_axes=*/3, /*spatial_merge_size=*/1);
  EXPECT_TRUE(at::equal(ids, ints({0, 0, 1, 0, 1, 5,  //
                                   0, 0, 0, 1, 1, 5,  //
                                   0, 0, 0, 0, 0, 5},
                                  {3, 1, 6})));
  EXPECT_EQ(deltas.item<int64_t>(), 0);
}

TEST(Coordinates, CentresOfPatches) {
  const at::Tensor want =
      torch::tensor({{-0.5, -0.5, 0.5, 0.5}, {-0.5, 0.5, -0.5, 0.5}}, at::kDouble);
  EXPECT_LT(max_error(posenc::grid_coordinates(2, 2), want), 1e-15);
  const at::Tensor moved = posenc::augment_coordinates(want, 0.25);
  EXPECT_LE(max_error(moved, want), 0.25);
  EXPECT_LT(max_error(moved - want, (moved - want).select(1, 0).unsqueeze(1).expand({2, 4})),
            1e-15);
  EXPECT_NE(error_of([&] { posenc::augment_coordinates(want, -1.0); }), "");
}

}  // namespace
