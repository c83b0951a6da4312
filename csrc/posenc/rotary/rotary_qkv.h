#pragma once

#include <posenc/rotary/rotary.h>

namespace posenc {

/// rotary_embedding of the q and k in a packed projection, with v passed bit for bit: one pass over
/// memory, no unpacking.
///
/// \param qkv (B, L, n_heads + 2·n_kv_heads, D), heads of q, then of k, then of v (a fused
/// projection with grouped heads); or (B, L, 3, H, D) as flash-attention packs it, where both
/// numbers are H. Any strides: a slice of a wider projection.
/// \param seq_dim 1, where both layouts have the time. The others as in rotary_embedding.
/// \return a tensor of qkv's shape and dtype.
/// \throws c10::ValueError naming the argument.
POSENC_API at::Tensor rotary_embedding_qkv(
    const at::Tensor& qkv, at::ArrayRef<double> inv_freq, int64_t n_heads, int64_t n_kv_heads,
    const std::optional<at::Tensor>& position_ids = std::nullopt, c10::SymInt offset = 0,
    int64_t seq_dim = 1, bool interleaved = true,
    std::optional<bool> interleaved_out = std::nullopt, int64_t rotary_start = 0,
    double attention_factor = 1.0, at::OptionalIntArrayRef axes = std::nullopt,
    bool inverse = false);

/// The same in place: q and k are rotated where they are, v is not touched. Returns qkv.
POSENC_API at::Tensor& rotary_embedding_qkv_(
    at::Tensor& qkv, at::ArrayRef<double> inv_freq, int64_t n_heads, int64_t n_kv_heads,
    const std::optional<at::Tensor>& position_ids = std::nullopt, c10::SymInt offset = 0,
    int64_t seq_dim = 1, bool interleaved = true,
    std::optional<bool> interleaved_out = std::nullopt, int64_t rotary_start = 0,
    double attention_factor = 1.0, at::OptionalIntArrayRef axes = std::nullopt,
    bool inverse = false);

}  // namespace posenc
