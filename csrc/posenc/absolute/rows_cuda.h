#pragma once

// What the operators of this room share on the host side of CUDA.

#include <posenc/absolute/rows_device_args.h>
#include <posenc/absolute/rows_launch.h>
#include <posenc/core/cuda_tools.h>

namespace posenc::absolute {

/// A launch for each slice of the frequencies: they travel as the kernel's parameters, so that no
/// table is kept, nothing is copied to the device and a CUDA graph holds them.
inline void launch_slices(const char* op, RowsKernel kernel, const RowsDeviceParams& params,
                          c10::ArrayRef<double> inv_freq, bool interleaved, at::ScalarType dtype) {
  for_frequency_slices(params, inv_freq, interleaved, static_cast<int64_t>(c10::elementSize(dtype)),
                       [&](const RowsDeviceParams& p) {
                         core::check_launch(op, launch_rows(kernel, p, core::gpu_dtype(dtype),
                                                            core::current_stream()));
                       });
}

}  // namespace posenc::absolute
