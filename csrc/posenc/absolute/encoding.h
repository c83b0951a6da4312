#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/absolute/encoding_source.h>
#include <posenc/core/positions.h>

#include <optional>

namespace posenc::absolute {

/// Checks that `count` frequencies fill `channels`: 2·count is channels, one more or one less.
void check_frequencies(const char* op, int64_t count, const c10::SymInt& channels);

/// The loops' view of an encoding; `positions` must outlive it.
EncodingSource encoding_source(c10::ArrayRef<double> inv_freq, bool interleaved,
                               const core::Positions& positions);

/// The encoding as ATen calls that trace, batch and differentiate: (*positions.shape, channels) of
/// dtype `compute`, from real or integer positions.
at::Tensor composite_encoding(const at::Tensor& positions, c10::ArrayRef<double> inv_freq,
                              const c10::SymInt& channels, bool interleaved,
                              at::ScalarType compute);

}  // namespace posenc::absolute
