#pragma once

#include <posenc/core/macros.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace posenc {

/// \defgroup rope_axes Which position axis each frequency of RoPE reads
/// A token of an image or a video has several positions (time, height, width), and each frequency
/// reads one of them: the `axes` of rotary_embedding, whose position_ids are then (A, B, L). Where
/// all axes are equal (text), every arrangement is 1-D RoPE bit for bit.
/// @{

/// Axes of the frequencies in a named arrangement; axis 0 is time t, 1 height h, 2 width w.
///
/// - contiguous: the first section's frequencies read axis 0, the next ones axis 1, and so on, for
///   any number of axes. Qwen2-VL and Qwen2.5-VL [16, 24, 24], GLM-4.1V [8, 12, 12], XD-RoPE of
///   HunYuan-VL.
/// - interleaved, sections (t, h, w): h where i % 3 = 1 and i < 3·n_h, w where i % 3 = 2 and
///   i < 3·n_w, else t. Qwen3-VL [24, 20, 20], Qwen3.5 [11, 11, 10].
/// - alternating: the axes in turn. NeoMME (rows, columns).
/// - alternating_hwt, sections (h, w, t): h and w in turn, then t. ERNIE-4.5-VL [22, 22, 20].
/// - alternating_thw: the same axes from sections (t, h, w). VideoRoPE [16, 24, 24].
///
/// \param sections frequencies of each axis, none negative, at least one in all.
/// \param n the number of frequencies, where known.
/// \return one axis for each frequency.
/// \throws c10::ValueError for an unknown arrangement, and for sections that it has no rule for or
/// whose sum is not n, naming both.
POSENC_API std::vector<int64_t> rope_axes(const std::string& arrangement,
                                          const std::vector<int64_t>& sections,
                                          std::optional<int64_t> n = std::nullopt);

/// M-RoPE's axes from a configuration's `mrope_section` and `mrope_interleaved`: rope_axes of
/// "interleaved" or "contiguous".
POSENC_API std::vector<int64_t> mrope_axes(const std::vector<int64_t>& sections,
                                           bool interleaved = false,
                                           std::optional<int64_t> n = std::nullopt);
/// @}

}  // namespace posenc
