#pragma once

// cos and sin of position · frequency, for the loops of *_simd.cpp. Include it there only.
//
// One pure function of (position, frequency) on every path. An integer position p is split as 64·a
// + r; the angle of 64·a is evaluated exactly in float64 and rotated by the angle of r, and the
// result is rounded once. So a row costs a few multiply-adds and no sine, and whatever way a
// position is reached (range, offset, position_ids, another axis, a chunk, a decode step, another
// instruction set) gives the same bits. A recurrence that runs along the rows would not.

#include <posenc/core/exact_angles.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

namespace posenc::core {
namespace {

class PhaseRows {
 public:
  /// `inv_freq`: n frequencies, radians per position. `amplitude` scales cos and sin, `sign` (±1)
  /// turns sin around.
  PhaseRows(const double* inv_freq, int64_t n, double amplitude = 1.0, double sign = 1.0)
      : inv_freq_(inv_freq),
        n_(n),
        amplitude_(amplitude),
        sign_(sign),
        memory_(new double[(5 + 2 * kBlock) * n]),
        base_block_(memory_.get()),
        base_(base_block_ + n),
        direct_(base_ + 2 * n),
        step_(direct_ + 2 * n) {
    forget();
  }

  /// Goes on with other frequencies, as many as before.
  void use(const double* inv_freq) {
    if (inv_freq != inv_freq_) {
      inv_freq_ = inv_freq;
      forget();
    }
  }

  /// Writes cos and sin of `position · inv_freq[i]` for i in [begin, end), rounded to T.
  template <typename T>
  void row(double position, T* cos, T* sin, int64_t begin, int64_t end) {
    const double block = std::floor(position * (1.0 / kBlock));
    const double rest = position - block * kBlock;
    if (!(rest ==
          std::floor(rest))) {  // a real-valued position (or NaN, infinity): the sine itself
      exact_angles(position, inv_freq_ + begin, end - begin, direct_ + begin, direct_ + n_ + begin);
      for (int64_t i = begin; i < end; ++i) {
        cos[i] = static_cast<T>(direct_[i] * amplitude_);
        sin[i] = static_cast<T>(direct_[n_ + i] * amplitude_ * sign_);
      }
      return;
    }
    const int64_t r = static_cast<int64_t>(rest);
    make_step(r);
    make_base(block, begin, end);
    const double* step_cos = step_ + r * 2 * n_;
    const double* step_sin = step_cos + n_;
    const double* base_cos = base_;
    const double* base_sin = base_cos + n_;
    const double cos_scale = amplitude_, sin_scale = amplitude_ * sign_;
    for (int64_t i = begin; i < end; ++i) {
      cos[i] = static_cast<T>((base_cos[i] * step_cos[i] - base_sin[i] * step_sin[i]) * cos_scale);
      sin[i] = static_cast<T>((base_sin[i] * step_cos[i] + base_cos[i] * step_sin[i]) * sin_scale);
    }
  }

  template <typename T>
  void row(double position, T* cos, T* sin) {
    row(position, cos, sin, 0, n_);
  }

 private:
  static constexpr int64_t kBlock = 64;  // the bits of steps_known_

  void forget() {
    std::fill_n(base_block_, n_, std::numeric_limits<double>::quiet_NaN());
    steps_known_ = 0;
  }

  void make_base(double block, int64_t begin, int64_t end) {
    int64_t other = 0;
    for (int64_t i = begin; i < end; ++i) {
      other += base_block_[i] != block;
    }
    if (other != 0) {
      exact_angles(block * kBlock, inv_freq_ + begin, end - begin, base_ + begin,
                   base_ + n_ + begin);
      std::fill(base_block_ + begin, base_block_ + end, block);
    }
  }

  // On demand: a decoded token needs one of the 64.
  void make_step(int64_t r) {
    if (steps_known_ >> r & 1) {
      return;
    }
    double* cos = step_ + r * 2 * n_;
    exact_angles(static_cast<double>(r), inv_freq_, n_, cos, cos + n_);
    steps_known_ |= uint64_t{1} << r;
  }

  const double* inv_freq_;
  int64_t n_;
  double amplitude_, sign_;
  std::unique_ptr<double[]> memory_;  // left as it comes: a decoded token touches little of it
  double* base_block_;                // (n) the block that base_ holds, NaN at first
  double* base_;                      // (2, n) cos and sin of the block's start
  double* direct_;                    // (2, n) cos and sin of a position that is no whole number
  double* step_;                      // (kBlock, 2, n) cos and sin of the steps, where known
  uint64_t steps_known_ = 0;
};

}  // namespace
}  // namespace posenc::core
