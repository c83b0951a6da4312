#pragma once

#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/rotary_kernels.h>

namespace posenc::rotary {

/// Runs the loops over x and y (y may be x) of one shape: brings any rank and any strides to
/// (batch, seq, head, channel) and shares the blocks between threads. `params` holds everything but
/// pointers, sizes and strides.
void run_rotation(const at::Tensor& x, const at::Tensor& y, int64_t seq_dim, RotaryParams params);

}  // namespace posenc::rotary
