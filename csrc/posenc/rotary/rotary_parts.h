#pragma once

// The tensors of a call, of any rank and strides, as the kernels see them: (batch, seq, head,
// channel).

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <posenc/rotary/rotary_kernels.h>

namespace posenc::rotary {

/// One tensor of a call, any rank and strides, and where its result goes; y may be x.
struct RotaryTarget {
  const at::Tensor& x;
  const at::Tensor& y;
  int64_t seq_dim;
  bool copied = false;  ///< passes as it is
};

struct RotaryWork {
  c10::SmallVector<RotaryPart, 4> parts;  ///< none where there is nothing to do
  int64_t batch = 1, seq = 0;
  int64_t row = 0;  ///< elements of one token
};

/// Brings tensors of one dtype and length to parts. Batches may differ in size where all rows have
/// the same angles: they then count as heads.
RotaryWork share_out(at::ArrayRef<RotaryTarget> targets);

}  // namespace posenc::rotary
