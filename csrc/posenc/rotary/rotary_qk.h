#pragma once

#include <posenc/rotary/rotary.h>

#include <tuple>

namespace posenc {

/// rotary_embedding of a query and a key by the same positions, in one operator call: the arguments
/// are checked once and the cos and sin of a position serve both.
///
/// \param q, k as rotary_embedding's x, of one length; heads, the channels past the rotated ones,
/// and the batch (where position_ids have none) may differ in number. \return the rotated q and k,
/// bit for bit those of two calls.
POSENC_API std::tuple<at::Tensor, at::Tensor> rotary_embedding_qk(
    const at::Tensor& q, const at::Tensor& k, at::ArrayRef<double> inv_freq,
    const std::optional<at::Tensor>& position_ids = std::nullopt, c10::SymInt offset = 0,
    int64_t seq_dim = 1, bool interleaved = true,
    std::optional<bool> interleaved_out = std::nullopt, int64_t rotary_start = 0,
    double attention_factor = 1.0, at::OptionalIntArrayRef axes = std::nullopt,
    bool inverse = false);

/// The same in place; q and k may be slices of one tensor, but not overlap. Returns both.
POSENC_API std::tuple<at::Tensor, at::Tensor> rotary_embedding_qk_(
    const at::Tensor& q, const at::Tensor& k, at::ArrayRef<double> inv_freq,
    const std::optional<at::Tensor>& position_ids = std::nullopt, c10::SymInt offset = 0,
    int64_t seq_dim = 1, bool interleaved = true,
    std::optional<bool> interleaved_out = std::nullopt, int64_t rotary_start = 0,
    double attention_factor = 1.0, at::OptionalIntArrayRef axes = std::nullopt,
    bool inverse = false);

}  // namespace posenc
