#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <cstdint>
#include <string>
#include <vector>

namespace posenc {

/// \defgroup axial RoPE over the axes of a grid
/// Tokens of an image stand in rows and columns. Positions are given as (A, L), the same for every
/// row of the batch, or (A, B, L): axis 0 is the row (h, y) and axis 1 the column (w, x); with
/// three axes t, h, w. Integer or real. vision_position_ids makes them.
/// @{

/// What an axial arrangement is made of, in the terms of rotary_embedding.
struct POSENC_API AxialFrequencies {
  /// Radians per position, float64; of all blocks one after the other.
  std::vector<double> inv_freq;
  /// The axis that each frequency reads.
  std::vector<int64_t> axes;
  /// Pairs (2i, 2i + 1) in place of two halves.
  bool interleaved = false;
  /// Parts of the rotated channels that are laid out each by itself: block b of `blocks` holds the
  /// channels from b · rotary_dim / blocks on.
  int64_t blocks = 1;
  /// Position axes: 2 or 3.
  int64_t n_axes = 2;
  /// Rotated channels, from the first one on; the others pass through.
  int64_t rotary_dim() const { return 2 * static_cast<int64_t>(inv_freq.size()); }
};

/// Frequencies of a named arrangement for a head of D channels.
///
/// With s the channels of one axis (D / 2, or 2·⌊⌊D / 3⌋ / 2⌋ of three) and f_j = base^(−2j/s),
/// j < s / 2:
/// - half_hw: f reads h, then f reads w; the second half of the head repeats them. Qwen2-VL,
///   Qwen2.5-VL, Qwen3-VL, GLM-4.1V and most towers after them; DINOv3 with real coordinates, base
///   100 and scale 2π.
/// - half_wh: w before h. Step-3.7.
/// - half_alternating_wh: f_0 reads w, f_0 h, f_1 w, f_1 h, …. Kimi-K2.5.
/// - half_parity_hw: one series f_i = base^(−2i/D), i < D / 2; its even members read h, its odd
/// ones
///   w; the even come first. Pixtral.
/// - half_thw: three axes t, h, w; the channels from 3·s on pass through. MiniMax-M3-VL.
/// - pairs_wh: f reads w, then f reads h, in pairs of neighbouring channels. SAM 2, SAM 3, EdgeTAM,
///   Inkling-2, Llama 4, RoPE-Axial of RoPE-ViT (base 100).
/// - pairs_hw: h before w. EVA-02.
/// - blocks_wh: the first half of the head is RoPE by w, the second by h, each in two halves. Gemma
///   4 (base 100).
///
/// \param head_dim D; a multiple of 4 for two axes, at least 6 for three.
/// \param base θ > 0.
/// \param scale multiplies every frequency, as if it multiplied the positions: 2π for coordinates
/// that count turns, window_size / grid for SAM 3's global layers.
/// \throws c10::ValueError naming the arrangement and the value.
POSENC_API AxialFrequencies axial_frequencies(const std::string& arrangement, int64_t head_dim,
                                              double base = 10000.0, double scale = 1.0);

/// Rotates x by its positions on several axes.
///
/// \param x (…, D), usually (B, L, H, D). \param inv_freq, axes, interleaved, blocks as in
/// AxialFrequencies. \param position_ids (A, L) or (A, B, L) of the tokens between prefix and
/// suffix, A = max(axes) + 1; integer, float32 or float64. \param offset added to every position.
/// \param seq_dim the axis that is time. \param n_prefix, n_suffix tokens at the beginning and the
/// end of the sequence that have no position (class token, registers): they pass bit for bit.
/// \param inverse rotates by −angle.
POSENC_API at::Tensor axial_rotary_embedding(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                                             at::IntArrayRef axes, const at::Tensor& position_ids,
                                             c10::SymInt offset = 0, int64_t seq_dim = 1,
                                             bool interleaved = false, int64_t blocks = 1,
                                             int64_t n_prefix = 0, int64_t n_suffix = 0,
                                             bool inverse = false);

/// RoPE-Mixed (Heo et al. 2024, arXiv:2403.13298): the angle is a linear map of the positions,
/// Σ_a position_ids[a] · freqs[a], with learned frequencies that mix the axes.
///
/// \param x (…, D); (B, L, H, D), or with time at seq_dim, for frequencies of each head. \param
/// freqs floating, (A, H, n), or (A, n) shared by the heads; differentiable. The angle is computed
/// in float64. \param interleaved pairs (2i, 2i + 1), as published; false: (i, i + n). The rest as
/// axial_rotary_embedding.
POSENC_API at::Tensor mixed_rotary_embedding(const at::Tensor& x, const at::Tensor& freqs,
                                             const at::Tensor& position_ids, c10::SymInt offset = 0,
                                             int64_t seq_dim = 1, bool interleaved = true,
                                             int64_t n_prefix = 0, int64_t n_suffix = 0,
                                             bool inverse = false);

/// Where RoPE-Mixed begins to learn: magnitudes base^(−4j/D), j < D / 4, along a direction of each
/// head and again across it.
/// \param angles (H), the directions, radians. \param n frequencies of a head, D / 2; even. \param
/// base θ, 10 as published.
/// \return (2, H, n) of the angles' dtype.
POSENC_API at::Tensor mixed_rotary_freqs(const at::Tensor& angles, int64_t n, double base = 10.0);
/// @}

}  // namespace posenc
