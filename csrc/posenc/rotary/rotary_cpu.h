#pragma once

#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/rotary_parts.h>

namespace posenc::rotary {

/// Runs the loops over tensors of one dtype and length: brings any rank and any strides to (batch,
/// seq, head, channel) and shares the blocks between threads. `params` holds everything but the
/// parts and their sizes. Batches may differ in size where all rows have the same angles.
void run_rotation(at::ArrayRef<RotaryTarget> targets, RotaryParams params);

/// The same with cos and sin of position · frequency.
void rotate_by_frequencies(at::ArrayRef<RotaryTarget> targets, at::ArrayRef<double> inv_freq,
                           const RotaryArgs& args);

/// The same where row b of the batch has the n frequencies inv_freq[b·n], …
void rotate_by_frequencies_of_rows(at::ArrayRef<RotaryTarget> targets, const double* inv_freq,
                                   int64_t n, const RotaryArgs& args);

}  // namespace posenc::rotary
