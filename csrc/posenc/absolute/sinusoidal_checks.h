#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace posenc::absolute {

/// Arguments of the operators, checked the same way by every key. ValueError, TypeError.
at::ScalarType check_sinusoidal_encoding(const at::Tensor& position_ids,
                                         c10::ArrayRef<double> inv_freq, int64_t d_model,
                                         std::optional<at::ScalarType> dtype);

/// Returns seq_dim counted from the front.
int64_t check_add_sinusoidal(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                             const std::optional<at::Tensor>& position_ids, int64_t seq_dim);

}  // namespace posenc::absolute
