#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

namespace posenc {

/// xPos, the extrapolatable rotary embedding (Sun et al. 2022, arXiv:2212.10554): RoPE whose pair i
/// of a query at position p is scaled by ζ_i^((p − centre) / scale_base), and that of a key by the
/// inverse, ζ_i = (2i + γ·dim) / ((1 + γ)·dim). So q·k holds ζ_i^((p_q − p_k) / scale_base): the
/// farther the key, the less the fast pairs count.
///
/// The centre cancels in q·k as long as all q and k have the same one. It is a fixed number here;
/// one that follows the length of the call, as in other codes, makes keys of a cache wrong at the
/// next step. The scale is evaluated in float64, as the angle, and A·cos and A·sin are rounded
/// once.
///
/// \param x (…, D), a query or a key, as rotary_embedding takes it; so are inv_freq (n frequencies,
/// dim = 2n), position_ids, offset, seq_dim, interleaved and rotary_start.
/// \param scale_base positions in which the scale of pair i goes down by ζ_i; 512 in the paper.
/// \param centre position of scale 1, the same for all calls of a model.
/// \param gamma γ, 0.4 in the paper.
/// \param is_key x holds keys: the inverse scale.
/// \return a tensor of x's shape and dtype.
/// \throws c10::ValueError for a position farther than xpos_reach from the centre, where the scale
/// would leave x's dtype; it names position, limit and remedy.
POSENC_API at::Tensor xpos_embedding(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                                     c10::SymInt offset = 0, int64_t seq_dim = 1,
                                     bool interleaved = true, int64_t rotary_start = 0,
                                     double scale_base = 512.0, double centre = 0.0,
                                     double gamma = 0.4, bool is_key = false);

/// The farthest distance from the centre that xpos_embedding serves in a dtype: there the scale of
/// the fastest pair is 2^±110 (float32, bfloat16), 2^±8 (float16) or 2^±1000 (float64), which
/// leaves a factor of 2^±16 (float16: 2^±6) to the values of x before they lose digits or overflow.
/// float32, scale_base 512: 31 161 positions; float16: 2 266.
POSENC_API double xpos_reach(at::ScalarType dtype, double scale_base = 512.0, double gamma = 0.4);

namespace rotary {

/// Checks the numbers of xPos; `where` names the caller.
void check_xpos(const char* where, double scale_base, double centre, double gamma);

}  // namespace rotary
}  // namespace posenc
