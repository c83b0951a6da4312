#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/absolute/frequencies.h>
#include <posenc/core/macros.h>

#include <optional>

namespace posenc {

/// The sinusoidal encoding of given positions (Vaswani et al. 2017):
/// sin(p * f_i) and cos(p * f_i) for each frequency.
///
/// `position_ids`: any shape, integer or real, negative ones too.
/// `inv_freq`: n frequencies in radians per position
/// (see `sinusoidal_inv_freq`); 2n is `d_model`, or one more (an odd d_model,
/// the last cosine is dropped), or one less (fairseq's odd d_model, the last
/// channel is zero). `interleaved`: [sin0, cos0, sin1, cos1, ...], else
/// [sin0, sin1, ..., cos0, cos1, ...]. `dtype`: of the result; by default the
/// default dtype, never that of the positions.
///
/// Returns (*position_ids.shape, d_model). Phases are exact (fp64), the result
/// is rounded once. Differentiable in real positions.
/// Throws ValueError for numbers that do not fit together, TypeError for bool
/// or complex positions and for a dtype that is not floating.
POSENC_API at::Tensor sinusoidal_encoding(const at::Tensor& position_ids,
                                          c10::ArrayRef<double> inv_freq, int64_t d_model,
                                          bool interleaved = true,
                                          std::optional<at::ScalarType> dtype = std::nullopt);

/// `scale * x + PE[position]`, the encoding added to embeddings in one pass.
///
/// `x`: (..., d_model) of rank >= 2, any floating dtype, any strides; `seq_dim`
/// names its time axis. `position_ids`: (L), (1, L) or (B, L), integer or real,
/// where B is the size of axis 0 (of axis 1 when seq_dim is 0); by default
/// 0 ... L-1. `offset` is added to them. `inv_freq`, `interleaved` as in
/// `sinusoidal_encoding`. `scale` multiplies x, not the encoding; use
/// sqrt(d_model) for raw token embeddings.
///
/// Returns a tensor like x. Arithmetic in fp32 (fp64 for fp64), one rounding.
/// Throws ValueError for shapes, TypeError for dtypes that do not fit.
POSENC_API at::Tensor add_sinusoidal(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                                     c10::SymInt offset = 0, int64_t seq_dim = 1,
                                     bool interleaved = true, double scale = 1.);

/// The table of Vaswani et al. 2017: PE[p, 2i] = sin(p / 10000^(2i/d_model)),
/// PE[p, 2i+1] the cosine. Returns (seq_len, d_model) in the default dtype.
/// Throws ValueError for seq_len < 0 or d_model < 1.
POSENC_API at::Tensor get_positional_encoding(int64_t seq_len, int64_t d_model);

/// Adds that table to embeddings `x` (B, L, d_model), or (L, d_model).
/// Throws ValueError, naming both lengths, for L > max_seq_len.
POSENC_API at::Tensor add_positional_encoding(const at::Tensor& x, int64_t max_seq_len = 5000);

}  // namespace posenc
