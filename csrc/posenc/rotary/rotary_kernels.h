#pragma once

// What the host hands to the loops of rotary_simd.cpp: numbers and pointers, no tensor.

#include <c10/core/ScalarType.h>
#include <posenc/core/isa.h>
#include <posenc/core/positions.h>

namespace posenc::rotary {

/// One tensor as (batch, seq, head, channel), strides in elements.
struct Strides {
  int64_t batch, seq, head, last;
};

/// cos and sin given as tables (apply_rotary): rows of `width` n, or 2n where the two channels of a
/// pair have numbers of their own, as transformers' doubled tables allow. Elements have the loops'
/// compute type.
struct Tables {
  const void* cos = nullptr;  ///< nullptr: cos and sin come from inv_freq
  const void* sin = nullptr;
  int64_t batch_stride = 0, seq_stride = 0;
  bool wide = false;
  bool wide_interleaved = false;  ///< a wide row is (f0, f0, f1, f1, …), not (f0, f1, …, f0, f1, …)
  const int64_t* rows = nullptr;  ///< (B or 1, L) rows to take; nullptr: row l
  int64_t rows_batch_stride = 0;
};

/// One tensor of a call. Several share the positions, and so the cos and sin of each row.
struct RotaryPart {
  const void* x;
  void* y;  ///< may be x
  int64_t heads, head_dim;
  Strides xs, ys;
  bool copied;  ///< not rotated: every channel passes bit for bit (v in a packed qkv)
};

struct RotaryParams {
  const RotaryPart* parts;
  int64_t n_parts;
  int64_t batch, seq;
  int64_t start;   ///< first rotated channel
  int64_t n_freq;  ///< pairs; 2·n_freq channels are rotated, the rest is copied bit for bit
  bool interleaved_in, interleaved_out;
  bool inverse;
  double attention_factor;
  const double* inv_freq;     ///< (n_freq), radians per position; (batch, n_freq) with a stride
  int64_t freq_batch_stride;  ///< 0: the rows of the batch have the same frequencies
  const int64_t* axes;        ///< (n_freq) the position axis of each frequency, or nullptr: axis 0
  core::PositionView positions;
  Tables tables;
  int64_t seq_block;  ///< rows that share the work of their cos and sin: at most kMaxSeqBlock
};

/// A block of rows is one task, and tasks run over (seq block, batch), batch fastest, so that a
/// batch with equal positions makes each cos and sin once. Where each row of the batch has
/// frequencies of its own, the blocks of one row follow each other instead.
constexpr int64_t kMaxSeqBlock = 64;

struct RotaryKernels {
  using Rotate = void (*)(const RotaryParams&, int64_t begin_task, int64_t end_task);
  Rotate f64, f32, bf16, f16;

  Rotate rotate(at::ScalarType dtype) const {
    switch (dtype) {
      case at::kDouble:
        return f64;
      case at::kFloat:
        return f32;
      case at::kBFloat16:
        return bf16;
      default:
        return f16;
    }
  }
};
POSENC_DECLARE_ISA_TABLE(RotaryKernels, rotary_kernels)

}  // namespace posenc::rotary
