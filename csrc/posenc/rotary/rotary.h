#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/TensorBody.h>
#include <c10/core/SymInt.h>
#include <c10/util/OptionalArrayRef.h>
#include <posenc/core/macros.h>

namespace posenc {

/// Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864): turns pairs of channels by
/// position · frequency.
///
/// Channels [rotary_start, rotary_start + 2·n) are rotated, n = len(inv_freq); all others pass
/// through bit for bit. The angle is evaluated in float64 and its cos and sin rounded once to
/// float32 (float64 for float64 input), in which the rotation is computed; the output has the
/// input's dtype.
///
/// \param x (…, D), any strides; float64, float32, bfloat16 or float16. Usually (B, L, H, D), or
/// (B, H, L, D) with seq_dim 2. \param inv_freq n frequencies, radians per position, highest first.
/// \param position_ids (L), (1, L) or (B, L), integer or real, negative too; with `axes` also (A,
/// B, L). None: 0 … L − 1. \param offset added to every position: the number of tokens before this
/// call. \param seq_dim the axis that is time. The batch is axis 0, or axis 1 where time is axis 0.
/// \param interleaved pairs are (2i, 2i + 1) (GPT-J, the paper); false: (i, i + n) (Llama in
/// transformers, GPT-NeoX). \param interleaved_out the layout to write, where it differs from the
/// one to read (DeepSeek-V3 reads pairs, writes halves). \param attention_factor scales the rotated
/// channels (YaRN, LongRoPE). \param axes for each frequency the axis of position_ids that it reads
/// (M-RoPE and other multi-axis forms). \param inverse rotates by −angle, scaled by
/// attention_factor all the same: the transpose of the forward map. \return a tensor of x's shape
/// and dtype. \throws c10::ValueError / TypeError naming the argument, what was expected and what
/// came.
POSENC_API at::Tensor rotary_embedding(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                                       const std::optional<at::Tensor>& position_ids = std::nullopt,
                                       c10::SymInt offset = 0, int64_t seq_dim = 1,
                                       bool interleaved = true,
                                       std::optional<bool> interleaved_out = std::nullopt,
                                       int64_t rotary_start = 0, double attention_factor = 1.0,
                                       at::OptionalIntArrayRef axes = std::nullopt,
                                       bool inverse = false);

/// The same with frequencies as a float64 tensor: (n); (B, 1, n), one set per row of the batch; or
/// (1, H, n), one per head (these two for 4-D x). Differentiable in inv_freq: learned frequencies,
/// or frequencies that depend on the length.
POSENC_API at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& inv_freq,
                                       const std::optional<at::Tensor>& position_ids = std::nullopt,
                                       c10::SymInt offset = 0, int64_t seq_dim = 1,
                                       bool interleaved = true,
                                       std::optional<bool> interleaved_out = std::nullopt,
                                       int64_t rotary_start = 0, double attention_factor = 1.0,
                                       at::OptionalIntArrayRef axes = std::nullopt,
                                       bool inverse = false);

/// The same in place; x's own memory is rotated and returned. Refused by autograd for a leaf that
/// requires a gradient.
POSENC_API at::Tensor& rotary_embedding_(
    at::Tensor& x, at::ArrayRef<double> inv_freq,
    const std::optional<at::Tensor>& position_ids = std::nullopt, c10::SymInt offset = 0,
    int64_t seq_dim = 1, bool interleaved = true,
    std::optional<bool> interleaved_out = std::nullopt, int64_t rotary_start = 0,
    double attention_factor = 1.0, at::OptionalIntArrayRef axes = std::nullopt,
    bool inverse = false);

/// The rotation with cos and sin given, as a trained model's own tables (defaults of PyTorch's
/// proposed F.rotary_embedding).
///
/// \param x as above; usually (B, H, L, D).
/// \param cos, sin tables (T, w) that position_ids index (rows 0 … L − 1 without), or rows already
/// gathered, (B, L, w) or
///   (1, L, w). Differentiable in both.
/// \param position_ids (L), (1, L) or (B, L), integer; IndexError outside [0, T), or
///   on a GPU the kernel stops, as that of torch's embedding does: nothing waits to read them.
/// \param doubled w is 2n, not n: the tables repeat each frequency, cat(f, f) for halves and (f0,
/// f0, f1, f1, …) for pairs,
///   and the two channels of a pair use their own numbers, as transformers computes it.
POSENC_API at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos,
                                   const at::Tensor& sin,
                                   const std::optional<at::Tensor>& position_ids = std::nullopt,
                                   int64_t seq_dim = 2, bool interleaved = false,
                                   std::optional<bool> interleaved_out = std::nullopt,
                                   int64_t rotary_start = 0, bool inverse = false,
                                   bool doubled = false);

/// RoPE's frequencies base^(−2i/dim), i = 0 … dim/2 − 1, in float64.
/// \param dim rotated channels, even; ValueError otherwise.
/// \param base θ > 0, 10000 in the paper.
POSENC_API std::vector<double> rope_inv_freq(int64_t dim, double base = 10000.0);

}  // namespace posenc
