#pragma once

#include <posenc/core/macros.h>

#include <cstdint>
#include <string>
#include <vector>

namespace posenc {

/// Frequencies of a sinusoidal table, in radians per position, as doubles.
///
/// `spacing` names the geometric series:
/// * `"standard"`: base^(-2i/d_model), i < ceil(d_model/2) (Vaswani et al.
///   2017, Marian, BART, DETR). An odd `d_model` ends with a sine that has no
///   cosine.
/// * `"half_minus_one"`: base^(-i/(h-1)), i < h = floor(d_model/2), so that the
///   slowest is exactly 1/base (tensor2tensor, fairseq, M2M, Speech2Text,
///   Whisper). An odd `d_model` ends with a channel of zeros, as in fairseq.
///
/// Throws ValueError for d_model < 1, a base that is not finite and positive,
/// or another spacing.
POSENC_API std::vector<double> sinusoidal_inv_freq(int64_t d_model, double base = 10000.,
                                                   const std::string& spacing = "standard");

}  // namespace posenc
