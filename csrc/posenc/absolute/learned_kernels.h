#pragma once

#include <posenc/absolute/row_walk.h>
#include <posenc/core/isa.h>

#include <cstdint>

namespace posenc::absolute {

/// y = x + weight[position]. Every position has been checked against the table.
struct AddPositionsParams {
  RowWalk walk;
  const void* x = nullptr;
  void* y = nullptr;
  const void* weight = nullptr;
  int64_t weight_row_stride = 0;          ///< elements; the channels of a row lie side by side
  const int64_t* position_ids = nullptr;  ///< nullptr: l
  int64_t ids_batch_stride = 0;
  int64_t offset = 0;
};

struct LearnedKernels {
  /// Over time steps of batch entries, b * length + l in [begin, end).
  using AddPositions = void (*)(const AddPositionsParams& params, int64_t begin, int64_t end);
  AddPositions f64, f32, bf16, f16;
};
POSENC_DECLARE_ISA_TABLE(LearnedKernels, learned_kernels)

}  // namespace posenc::absolute
