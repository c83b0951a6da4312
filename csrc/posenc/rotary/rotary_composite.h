#pragma once

// The rotation in ATen calls alone: what torch.func, forward-mode AD and devices without a kernel
// run. Never touches data.

#include <posenc/rotary/rotary_args.h>

namespace posenc::rotary {

/// (B or 1, L, w) → one axis per axis of x, of size 1 where x's axis is neither batch nor time.
at::Tensor align_rows(at::Tensor rows, int64_t rank, int64_t seq_dim);

/// Positions · frequencies in float64, aligned with x; inv_freq (n), (B, 1, n) or (1, H, n).
at::Tensor phases(const at::Tensor& x, const at::Tensor& inv_freq, const RotaryArgs& args);

/// Positions aligned with x, last axis 1, or n with axes.
at::Tensor aligned_positions(const at::Tensor& x, const RotaryArgs& args);

/// inv_freq with one axis per axis of x.
at::Tensor align_freq(const at::Tensor& inv_freq, const at::Tensor& x, int64_t seq_dim);

/// The two channels of each pair of the rotated part, as x lays them out.
std::pair<at::Tensor, at::Tensor> split_pairs(const at::Tensor& x, int64_t n, int64_t start,
                                              bool interleaved);

/// (…, n) and (…, n) as the pairs of one (…, 2n): side by side, or in two halves.
at::Tensor join_pairs(const at::Tensor& lo, const at::Tensor& hi, bool interleaved);

/// Rotates by cos and sin aligned with x; `inverse` is not applied here.
at::Tensor rotate_by(const at::Tensor& x, const at::Tensor& cos_lo, const at::Tensor& sin_lo,
                     const at::Tensor& cos_hi, const at::Tensor& sin_hi, const RotaryArgs& args);

at::Tensor rotary_embedding_composite(const at::Tensor& x, const at::Tensor& inv_freq,
                                      const RotaryArgs& args);

/// Σ over everything that inv_freq does not have of position · (x × x_grad): the gradient of the
/// frequencies from the input and its gradient, both in the input's layout. (A rotation keeps the
/// cross product of two vectors, so the gradient that was rotated back serves, and the output need
/// not be computed again.)
at::Tensor inv_freq_grad(const at::Tensor& x_grad, const at::Tensor& x, const at::Tensor& inv_freq,
                         const RotaryArgs& args);

}  // namespace posenc::rotary
