#pragma once

#include <posenc/rotary/rotary.h>

namespace posenc {

/// \defgroup cached_keys Keys that were rotated and stay
/// A cache holds keys that carry their angle already. Rotations add up, so what changes about them
/// later (their frequencies, their place) is one more rotation, by the difference.
/// @{

/// Moves cached keys from one set of frequencies to another: dynamic NTK past another length,
/// LongRoPE past its switch, or a context extended after the cache was filled.
///
/// One rotation by position · (new − old), the difference taken in float64, times
/// new_attention_factor / old_attention_factor. The result is that of rotating the keys afresh, up
/// to one more rounding to their dtype.
///
/// \param keys as they left rotary_embedding. \param old_inv_freq, new_inv_freq n frequencies each,
/// radians per position. \param position_ids, offset the positions that the keys were rotated at.
/// \param interleaved the layout that the keys have now: the one that was written.
/// \param axes, inverse as in rotary_embedding, for the keys as they are.
/// \throws c10::ValueError naming the argument.
POSENC_API at::Tensor re_rotate(const at::Tensor& keys, at::ArrayRef<double> old_inv_freq,
                                at::ArrayRef<double> new_inv_freq,
                                const std::optional<at::Tensor>& position_ids = std::nullopt,
                                c10::SymInt offset = 0, int64_t seq_dim = 1,
                                bool interleaved = true, int64_t rotary_start = 0,
                                double old_attention_factor = 1.0,
                                double new_attention_factor = 1.0,
                                at::OptionalIntArrayRef axes = std::nullopt, bool inverse = false);

/// The same with frequencies as float64 tensors (n), (B, 1, n) or (1, H, n): what
/// dynamic_ntk_inv_freq makes of the lengths of a batch. Differentiable in all three.
POSENC_API at::Tensor re_rotate(const at::Tensor& keys, const at::Tensor& old_inv_freq,
                                const at::Tensor& new_inv_freq,
                                const std::optional<at::Tensor>& position_ids = std::nullopt,
                                c10::SymInt offset = 0, int64_t seq_dim = 1,
                                bool interleaved = true, int64_t rotary_start = 0,
                                double old_attention_factor = 1.0,
                                double new_attention_factor = 1.0,
                                at::OptionalIntArrayRef axes = std::nullopt, bool inverse = false);

/// Moves cached keys by `delta` positions, as a cache does that evicts tokens and closes the gap.
///
/// A pure rotation: an attention factor that the keys carry is not applied again, so their norm
/// stays. For one position axis: a key that reads several cannot move by one number.
///
/// \param delta integer or real: a scalar or (1) for all, (B) one a row, (B, L) one a key.
/// \param inv_freq the frequencies that the keys carry.
POSENC_API at::Tensor shift(const at::Tensor& keys, const at::Tensor& delta,
                            at::ArrayRef<double> inv_freq, int64_t seq_dim = 1,
                            bool interleaved = true, int64_t rotary_start = 0,
                            bool inverse = false);
POSENC_API at::Tensor shift(const at::Tensor& keys, const at::Tensor& delta,
                            const at::Tensor& inv_freq, int64_t seq_dim = 1,
                            bool interleaved = true, int64_t rotary_start = 0,
                            bool inverse = false);
/// @}

}  // namespace posenc
