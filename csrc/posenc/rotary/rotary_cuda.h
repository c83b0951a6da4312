#pragma once

#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/rotary_device_args.h>
#include <posenc/rotary/rotary_parts.h>

namespace posenc::rotary {

/// Positions, or rows of a table, as a kernel reads them; `storage` keeps a tensor of a dtype that
/// it does not know, widened.
core::IdView position_view(const std::optional<at::Tensor>& position_ids, int64_t offset,
                           at::Tensor& storage);

/// Launches the rotation of tensors of one dtype and length. `params` holds everything but the
/// parts and their counts.
void run_rotation_cuda(const char* op, at::ArrayRef<RotaryTarget> targets,
                       RotaryDeviceParams params);

/// The same with cos and sin of position · frequency.
void rotate_by_frequencies_cuda(const char* op, at::ArrayRef<RotaryTarget> targets,
                                at::ArrayRef<double> inv_freq, const RotaryArgs& args);

}  // namespace posenc::rotary
