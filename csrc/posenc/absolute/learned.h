#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <optional>

namespace posenc {

/// `x + weight[position]`: learned positions (GPT, BERT, ViT) in one pass.
///
/// `x`: (..., d) of rank >= 2, floating, any strides; `seq_dim` names its time
/// axis. `weight`: (num_rows, d), dtype and device of x. `position_ids`: (L),
/// (1, L) or (B, L), integer, where B is the size of axis 0 (of axis 1 when
/// seq_dim is 0); by default 0 ... L-1. `offset` is added to them (2 for OPT).
///
/// Returns a tensor like x; differentiable in x and weight, to any order.
/// Throws IndexError, naming position and limit, for a position < 0 or
/// >= num_rows (on a GPU the kernel stops instead, as that of torch's embedding
/// does: nothing waits to read position_ids); ValueError for shapes, TypeError for dtypes that do
/// not fit.
POSENC_API at::Tensor add_positions(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& position_ids = std::nullopt,
                                    c10::SymInt offset = 0, int64_t seq_dim = 1);

}  // namespace posenc
