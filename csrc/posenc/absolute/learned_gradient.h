#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>

namespace posenc::absolute {

/// The gradient of add_positions to its table, in ATen calls that trace, batch and differentiate.
/// Positions are not checked against the table's height.
at::Tensor add_positions_gradient(const at::Tensor& grad, c10::SymInt num_rows,
                                  const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                                  int64_t seq_dim);

}  // namespace posenc::absolute
