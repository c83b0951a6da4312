#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace posenc {

/// \defgroup grid_positions Positions of tokens that stand in grids
/// A grid is (t, h, w): frames (or 1), rows and columns of patches. The functions that take grids
/// read their numbers, which decide the lengths: they run on the host, give int64 on the input's
/// device, and are no part of a compiled or exported graph (ValueError there).
/// @{

/// Rows and columns of the patches of images and videos, for the towers that see them.
/// \param grid_thw (images, 3), integer; one (3) is one image.
/// \param spatial_merge_size m: patches are ordered in blocks of m × m, row by row within a block
/// and the blocks row by row, as the Qwen towers order them; 1 is row-major order. Divides h and w.
/// \param include_time the frame as a first axis.
/// \return int64 (2, L) as (h, w), or (3, L) as (t, h, w); L is the sum of t·h·w.
POSENC_API at::Tensor vision_position_ids(const at::Tensor& grid_thw,
                                          int64_t spatial_merge_size = 1,
                                          bool include_time = false);

/// Positions (t, h, w) of a sequence of text, images and videos: M-RoPE (Qwen2-VL,
/// arXiv:2409.12191).
///
/// Text counts up, equal on all axes. An image or a video begins where the count stands; its tokens
/// add their frame, row and column. The count goes on at the largest position on any axis + 1.
/// (transformers 5.24 adds max(h, w) / m instead, which differs where a video has more frames than
/// rows and columns, and contradicts its own decoding step.)
///
/// \param token_types (B, L) integer: 0 text, 1 image, 2 video; in the order of the grids. Images
/// may touch.
/// \param image_grid_thw, video_grid_thw (n, 3) integer: the grids of the whole batch, row after
/// row, in patches before merging.
/// \param attention_mask (B, L): nonzero for real tokens; padding, on either side, is at 0.
/// \param spatial_merge_size m: a grid has h / m rows and w / m columns of tokens.
/// \param temporal_merge_size a video has t / this many frames of tokens (ERNIE-4.5-VL: 2).
/// \param tokens_per_second, second_per_grid_ts frame k of video i is at ⌊k · tokens_per_second ·
/// second_per_grid_ts[i]⌋ (Qwen2.5-VL), a product in float32 as the models compute it; seconds (n)
/// default to 1.
/// \param split_video_frames timestamps stand between the frames of a video, each of which is then
/// a grid of its own (Qwen3-VL, GLM-4.1V). \return int64 position_ids (3, B, L), and rope_deltas
/// (B): the row's largest position + 1 − its number of real tokens, for mrope_decode_position_ids.
/// \throws c10::ValueError where tokens and grids do not fit each other, with the row and both
/// numbers.
POSENC_API std::tuple<at::Tensor, at::Tensor> mrope_position_ids(
    const at::Tensor& token_types, const std::optional<at::Tensor>& image_grid_thw = std::nullopt,
    const std::optional<at::Tensor>& video_grid_thw = std::nullopt,
    const std::optional<at::Tensor>& attention_mask = std::nullopt, int64_t spatial_merge_size = 2,
    int64_t temporal_merge_size = 1, double tokens_per_second = 1.0,
    const std::optional<at::Tensor>& second_per_grid_ts = std::nullopt,
    bool split_video_frames = false);

/// Positions of the tokens after a prompt: real tokens so far + the row's rope_delta + 0 … length −
/// 1, equal on all axes. Traceable.
/// \param n_tokens (B) or (1) integer: real tokens of each row before these. \param rope_deltas
/// (B). \return int64 (n_axes, B, length).
POSENC_API at::Tensor mrope_decode_position_ids(const at::Tensor& n_tokens,
                                                const at::Tensor& rope_deltas, c10::SymInt length,
                                                int64_t n_axes = 3);

/// Positions of XD-RoPE (HunYuan-VL): all axes count the tokens; the last three of an image's grid
/// are (column, row, number of the image in the batch).
///
/// A row of the grid ends with a separator, which stands in column w / m; an image may be enclosed
/// by two more tokens, which count as text does.
/// \param token_types (B, L) integer: 0 text, 1 image. \param image_grid_thw (n, 3). \param
/// attention_mask as in mrope_position_ids. \param n_axes 3 or more.
/// \return int64 position_ids (n_axes, B, L) and rope_deltas (B).
POSENC_API std::tuple<at::Tensor, at::Tensor> xdrope_position_ids(
    const at::Tensor& token_types, const std::optional<at::Tensor>& image_grid_thw = std::nullopt,
    const std::optional<at::Tensor>& attention_mask = std::nullopt, int64_t n_axes = 4,
    int64_t spatial_merge_size = 2);

/// Centres of the patches of a grid in coordinates from −1 to 1 (DINOv3): row y and column x of
/// patch i·width + j are 2·(i + 1/2) / height − 1 and 2·(j + 1/2) / width − 1. Traceable.
/// \return float64 (2, height · width), (y, x).
POSENC_API at::Tensor grid_coordinates(c10::SymInt height, c10::SymInt width,
                                       std::optional<at::Device> device = std::nullopt);

/// Coordinates as DINOv3 moves them in training, drawn anew at each call: plus a number of [−shift,
/// shift] for each axis, times one of [1 / jitter, jitter] for each axis and times one of [1 /
/// rescale, rescale] for all (both log-uniform). Each is left out where it is not given.
/// \param coordinates (A, …), floating.
POSENC_API at::Tensor augment_coordinates(const at::Tensor& coordinates,
                                          std::optional<double> shift = std::nullopt,
                                          std::optional<double> jitter = std::nullopt,
                                          std::optional<double> rescale = std::nullopt);
/// @}

}  // namespace posenc
