#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

namespace posenc {

/// \defgroup positions Positions from what a training loop or a cache has
/// The operators know one form, `position_ids`; these make it from the others. All of them trace,
/// script and export.
/// @{

/// Positions of real tokens in a padded batch: `cumsum(mask) - 1`, padding before the first token
/// at 0. \param mask (B, L) or (L): bool, integer or float; nonzero marks a real token. \return
/// int64, the mask's shape.
POSENC_API at::Tensor positions_from_mask(const at::Tensor& mask);

/// Positions in packed documents, restarting at each.
/// \param cu_seqlens (n + 1) cumulated lengths that begin with 0, as flash-attention takes them.
/// \param total number of tokens (a size, so that nothing is read back from the device).
/// \param offsets (n) integer: tokens of each document that came before, as in a cache.
/// \return int64 (total).
POSENC_API at::Tensor positions_from_cu_seqlens(
    const at::Tensor& cu_seqlens, c10::SymInt total,
    const std::optional<at::Tensor>& offsets = std::nullopt);

/// Positions in packed documents, restarting where the id changes.
/// \param document_ids (B, L) or (L), integer.
/// \return int64, the same shape.
POSENC_API at::Tensor positions_from_documents(const at::Tensor& document_ids);

/// `offsets[b] + 0 … length - 1`: rows of a batch that decode at different places.
/// \param offsets (B) integer.
/// \return int64 (B, length).
POSENC_API at::Tensor positions_from_offsets(const at::Tensor& offsets, c10::SymInt length);

/// The positions that one rank of a context-parallel group holds.
/// \param length the whole sequence, divisible by world_size (2 · world_size with zigzag).
/// \param zigzag rank r holds the chunks r and 2·world_size − 1 − r, so that causal work is even.
/// \return int64 (length / world_size).
POSENC_API at::Tensor positions_for_context_parallel(c10::SymInt length, int64_t rank,
                                                     int64_t world_size, bool zigzag = false);
/// @}

namespace core {

/// The axis that is the batch when `seq_dim` is time: the first other one; −1 for a tensor of one
/// row.
inline int64_t batch_dim(int64_t seq_dim, int64_t rank) {
  if (seq_dim != 0) {
    return 0;
  }
  return rank >= 3 ? 1 : -1;
}

/// Checks the shape of position_ids against x: (L), (1, L), (B, L), and with `n_axes` > 0 also (A,
/// 1 or B, L) with A ≥ n_axes.
void check_position_ids(const char* op, const std::optional<at::Tensor>& position_ids,
                        const at::Tensor& x, int64_t seq_dim, int64_t n_axes = 0);

/// Positions as float64 of shape (A, 1 or B, L), in traceable calls: `position_ids + offset`, or
/// offset … offset + L − 1. A is 1 without axes.
at::Tensor position_tensor(const std::optional<at::Tensor>& position_ids, const c10::SymInt& offset,
                           const c10::SymInt& length, const at::TensorOptions& options);

/// Positions as the loops read them.
struct PositionView {
  const double* data = nullptr;  ///< nullptr: offset + l
  int64_t axis_stride = 0, batch_stride = 0, seq_stride = 0;
  double offset = 0;

  double at(int64_t axis, int64_t batch, int64_t l) const {
    return data ? data[axis * axis_stride + batch * batch_stride + l * seq_stride]
                : offset + static_cast<double>(l);
  }
  /// True where every row of the batch has the same positions.
  bool shared_by_batch() const { return batch_stride == 0; }
};

/// The view, and the float64 tensor that keeps its memory alive. CPU tensors.
struct Positions {
  at::Tensor storage;
  PositionView view;
};
Positions make_positions(const std::optional<at::Tensor>& position_ids, int64_t offset);

}  // namespace core
}  // namespace posenc
