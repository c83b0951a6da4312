#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>

namespace posenc::absolute {

/// Arguments of add_positions, checked the same way by every key; without position_ids the table's
/// limit as well, from the shapes. Returns seq_dim counted from the front.
int64_t check_add_positions(const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& position_ids,
                            const c10::SymInt& offset, int64_t seq_dim);

/// The same for its backward, where only the gradient and the table's height are known.
int64_t check_add_positions_backward(const at::Tensor& grad, const c10::SymInt& num_rows,
                                     const std::optional<at::Tensor>& position_ids,
                                     const c10::SymInt& offset, int64_t seq_dim);

/// Integer ids as contiguous int64. `ids` + `offset` outside [0, num_rows) is an IndexError that
/// names the number and the limit; `name` says what they are. CPU tensors.
at::Tensor checked_ids(const char* op, const char* name, const at::Tensor& ids, int64_t offset,
                       int64_t num_rows);

}  // namespace posenc::absolute
