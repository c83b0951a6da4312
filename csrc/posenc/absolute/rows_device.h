#pragma once

// Parameters and grids of the CUDA kernels of this room; their bodies stand in rows_body.h. Neither
// torch nor CUDA headers.

#include <posenc/core/gpu_context.h>
#include <posenc/core/gpu_ids.h>
#include <posenc/core/gpu_team.h>

namespace posenc::absolute {

/// Rows of a table, (rows, channels), whose channels lie side by side.
struct TableView {
  const void* data = nullptr;
  int64_t rows = 0, row_stride = 0;
};

/// Some of the frequencies of an encoding, by value, and the channels that they fill.
struct FrequencySlice {
  static constexpr int kMost = 256;

  int64_t n = 0;                 ///< frequencies of the whole encoding
  int32_t begin = 0, count = 0;  ///< the slice
  bool interleaved = true;
  uint64_t fraction[kMost];  ///< of core::TurnFrequency; bits of the frequency itself for float64
  int32_t whole[kMost];      ///< or core::kNoTurn, for an angle that is NaN

  /// Channel of the tensor for the slice's channel v: sines from 0 on, cosines after them.
  POSENC_HD int64_t channel(int64_t v) const {
    return interleaved ? 2 * int64_t{begin} + v : v < count ? begin + v : n + begin + (v - count);
  }
};

/// A tensor (..., channels) and its output: each time step of each batch entry has rows (heads,
/// images, none), which share a position. What RowWalk is to the CPU loops, for fewer axes.
struct DeviceWalk {
  static constexpr int kMaxRest = 8;

  struct Strides {
    int64_t batch = 0, time = 0, channel = 1;
    int64_t rest[kMaxRest] = {};
  };

  int64_t batch = 1, length = 1;
  int rest_dims = 0;
  int64_t rest_size[kMaxRest] = {};
  Strides x, y;

  POSENC_HD int64_t rest_rows() const {
    int64_t rows = 1;
    for (int k = 0; k < rest_dims; ++k) {
      rows *= rest_size[k];
    }
    return rows;
  }
};

struct RowsDeviceParams {
  DeviceWalk walk;
  const void* x = nullptr;
  void* y = nullptr;
  double scale = 1;
  core::IdView positions;
  core::IdView tokens;   ///< rows of `source`, in place of x
  TableView source;      ///< of tokens
  TableView addend;      ///< of positions, in place of the encoding
  int64_t channels = 0;  ///< that this launch writes
  bool packed = false;   ///< 16 bytes at a time
  FrequencySlice slice;
};
static_assert(sizeof(RowsDeviceParams) <= 4096, "what every GPU takes as parameters");

inline constexpr int kRowThreads = 256;

/// Shared memory of a block for a slice's frequencies: parameters are read one address at a time,
/// and neighbouring threads want different ones.
inline constexpr int64_t kFractionBytes = FrequencySlice::kMost * 8;
inline constexpr int64_t kSliceBytes = kFractionBytes + FrequencySlice::kMost * 4;

/// A thread for N channels of a time step; the rows that share it (heads, and the batch) one after
/// another, so that they share the encoding, but cut into parts until the GPU is full.
template <class T>
core::GridShape rows_grid(const RowsDeviceParams& p) {
  constexpr int64_t kBlocksThatFill = 2048;
  core::GridShape grid;
  grid.threads = kRowThreads;
  grid.shared_bytes = p.addend.data == nullptr ? kSliceBytes : 0;
  const int64_t groups = p.packed ? p.channels / core::kFullPack<T> : p.channels;
  grid.x = core::ceil_div(p.walk.length * groups, kRowThreads);
  grid.y = core::min_of(core::ceil_div(kBlocksThatFill, grid.x), p.walk.batch * p.walk.rest_rows());
  return grid;
}

/// Stops where an id, with its offset, is no row of the table: what a gradient that is summed by
/// ATen needs to know before. `length` ids for each of `batch`.
struct CheckIdsParams {
  core::IdView ids;
  int64_t batch = 1, length = 1, rows = 0;
};

inline core::GridShape check_ids_grid(const CheckIdsParams& p) {
  core::GridShape grid;
  grid.threads = kRowThreads;
  grid.x = core::ceil_div(p.batch * p.length, kRowThreads);
  return grid;
}

}  // namespace posenc::absolute
