#pragma once

#include <cstdint>

namespace posenc::absolute {

/// A tensor (..., channels) and its output, seen by the loops as rows: each time step of each batch
/// entry has `rest` rows (heads, images, none), which share a position. Plain data; strides in
/// elements.
struct RowWalk {
  static constexpr int kMaxRest = 64;  // what a tensor's rank allows

  struct Strides {
    int64_t batch = 0, time = 0, channel = 1;
    int64_t rest[kMaxRest];
  };

  int64_t batch = 1, length = 1, channels = 1;
  int rest_dims = 0;
  int64_t rest_size[kMaxRest];
  Strides x, y;

  int64_t rest_rows() const {
    int64_t rows = 1;
    for (int k = 0; k < rest_dims; ++k) {
      rows *= rest_size[k];
    }
    return rows;
  }

  /// f(x offset, y offset) for every row at (b, l). No row where an axis is empty: the caller has
  /// left already.
  template <typename F>
  void rows_at(int64_t b, int64_t l, F&& f) const {
    int64_t x_at = b * x.batch + l * x.time, y_at = b * y.batch + l * y.time;
    if (rest_dims == 0) {
      f(x_at, y_at);
      return;
    }
    // An odometer whose last axis runs fastest.
    int64_t counter[kMaxRest];
    for (int k = 0; k < rest_dims; ++k) {
      counter[k] = 0;
    }
    for (;;) {
      f(x_at, y_at);
      int k = rest_dims - 1;
      for (; k >= 0; --k) {
        x_at += x.rest[k];
        y_at += y.rest[k];
        if (++counter[k] < rest_size[k]) {
          break;
        }
        x_at -= counter[k] * x.rest[k];
        y_at -= counter[k] * y.rest[k];
        counter[k] = 0;
      }
      if (k < 0) {
        return;
      }
    }
  }
};

/// How the work on a walk is cut into tasks for threads: tiles of time steps times groups of batch
/// entries.
struct TileGrid {
  int64_t rows_per_tile = 1, tiles = 1;
  int64_t batch_per_group = 1, groups = 1;

  int64_t tasks() const { return tiles * groups; }
};

}  // namespace posenc::absolute
