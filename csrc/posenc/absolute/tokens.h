#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymBool.h>
#include <posenc/absolute/row_walk.h>

#include <optional>

namespace posenc::absolute {

/// True, or a guard that a tracer checks later where the sizes are symbols.
inline bool holds(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

/// Checks x (..., channels) of rank >= 2 and a time axis that is not the channel axis; returns the
/// axis counted from the front.
int64_t check_tokens(const char* op, const at::Tensor& x, int64_t seq_dim);

/// Tiles of a walk whose positions are the same for all of the batch (`shared_by_batch`) or not.
/// A tile's encoding, `channels` numbers of `item_size` bytes a row, stays in the L1 cache.
TileGrid tile_grid(int64_t batch, int64_t length, int64_t channels, int64_t item_size,
                   bool shared_by_batch);

/// (1 or B, L, channels) laid out so that it broadcasts against x.
at::Tensor broadcast_over(const at::Tensor& rows, const at::Tensor& x, int64_t seq_dim);

}  // namespace posenc::absolute
