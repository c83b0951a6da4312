#include <ATen/Parallel.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/checks.h>
#include <posenc/core/positions.h>

#include <algorithm>

namespace posenc::absolute {

int64_t check_tokens(const char* op, const at::Tensor& x, int64_t seq_dim) {
  core::check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": expected x of shape (..., L, d_model), got ",
                    x.sym_sizes());
  const int64_t axis = core::wrap_dim(op, "seq_dim", seq_dim, x.dim());
  TORCH_CHECK_VALUE(axis != x.dim() - 1, op, ": expected seq_dim to name the time axis of x, got ",
                    seq_dim, ", the channels of shape ", x.sym_sizes(),
                    x.dim() == 2 ? " (for one sequence (L, d_model) give seq_dim=0)" : "");
  return axis;
}

TileGrid tile_grid(int64_t batch, int64_t length, int64_t channels, int64_t item_size,
                   bool shared_by_batch) {
  constexpr int64_t kTileBytes = 16 * 1024;
  TileGrid grid;
  grid.rows_per_tile = std::clamp<int64_t>(kTileBytes / std::max<int64_t>(channels * item_size, 1),
                                           1, std::max<int64_t>(length, 1));
  grid.tiles = (length + grid.rows_per_tile - 1) / grid.rows_per_tile;
  grid.groups = batch;
  if (shared_by_batch) {
    // As few groups as keep the threads busy: each group computes the tile's encoding once.
    const int64_t wanted = 4 * static_cast<int64_t>(at::get_num_threads());
    grid.groups = std::clamp<int64_t>((wanted + grid.tiles - 1) / std::max<int64_t>(grid.tiles, 1),
                                      1, std::max<int64_t>(batch, 1));
  }
  grid.batch_per_group = (batch + grid.groups - 1) / std::max<int64_t>(grid.groups, 1);
  grid.groups = (batch + grid.batch_per_group - 1) / std::max<int64_t>(grid.batch_per_group, 1);
  return grid;
}

at::Tensor broadcast_over(const at::Tensor& rows, const at::Tensor& x, int64_t seq_dim) {
  const int64_t batch_dim = core::batch_dim(seq_dim, x.dim());
  std::vector<c10::SymInt> shape(x.dim(), 1);
  shape[seq_dim] = rows.sym_size(1);
  shape.back() = rows.sym_size(2);
  if (batch_dim < 0) {
    return rows.reshape_symint(shape);
  }
  shape[batch_dim] = rows.sym_size(0);
  return (batch_dim < seq_dim ? rows : rows.transpose(0, 1)).reshape_symint(shape);
}

}  // namespace posenc::absolute
