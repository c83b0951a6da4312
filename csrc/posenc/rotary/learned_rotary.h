#pragma once

#include <ATen/core/Tensor.h>
#include <posenc/core/macros.h>

#include <string>

namespace posenc {

/// The frequencies of RoPE from a trained tensor, for the tensor overload of rotary_embedding.
///
/// `log` (LeRoPE, Mistral Large 4): f'_i = f_i·exp(α_i) with α trained from 0. f stays a list of
/// doubles, so at α = 0 nothing is lost in any dtype of α, and a rounding of α by a relative u
/// turns the angle at position p by at most p·f'·|α|·u: u is 2^-24 for float32, 2^-8 for bfloat16.
/// `direct`: the tensor holds f' itself, whose rounding turns the angle by p·f'·u; half types are
/// refused.
///
/// \param weight α or f', (n), or (H, n): one set a head.
/// \param inv_freq the n frequencies f, radians per position (their number alone counts with
/// `direct`).
/// \param parametrisation "log" or "direct".
/// \return float64 (n) or (1, H, n), differentiable in weight.
/// \throws c10::ValueError / TypeError naming the argument, what was expected and what came.
POSENC_API at::Tensor learned_inv_freq(const at::Tensor& weight, at::ArrayRef<double> inv_freq,
                                       c10::string_view parametrisation = "log");

}  // namespace posenc
