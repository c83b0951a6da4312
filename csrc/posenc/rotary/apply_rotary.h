#pragma once

// Arguments of apply_rotary beside x: the rotation by tables that the caller hands over.

#include <posenc/rotary/rotary_args.h>

namespace posenc::rotary {

struct TableArgs {
  RotaryArgs rotary;  ///< layouts, start, seq_dim, inverse, position_ids (rows of the tables)
  int64_t n = 0;      ///< pairs
  bool wide = false;  ///< tables of 2n columns: the channels of a pair have numbers of their own
  bool rows = false;  ///< tables (B or 1, L, w), already gathered; else (T, w)
};

/// Checks x, cos and sin against each other, and tells n and the tables' form. Works on symbolic
/// sizes.
TableArgs check_apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                             const std::optional<at::Tensor>& position_ids, int64_t seq_dim,
                             bool interleaved, std::optional<bool> interleaved_out,
                             int64_t rotary_start, bool inverse, bool doubled);

/// The same in ATen calls alone.
at::Tensor apply_rotary_composite(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                  const TableArgs& args);

/// Gradients of cos and sin, in their own shape and dtype, from the gradient of the output.
std::pair<at::Tensor, at::Tensor> table_grads(const at::Tensor& grad, const at::Tensor& x,
                                              const at::Tensor& cos, const at::Tensor& sin,
                                              const TableArgs& args);

}  // namespace posenc::rotary
