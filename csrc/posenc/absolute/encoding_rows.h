#pragma once

// One row of the sinusoidal encoding, for the loops of *_simd.cpp. Include it there only.

#include <posenc/absolute/encoding_source.h>
#include <posenc/core/phase_rows.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace posenc::absolute {
namespace {

/// Computes rows in the dtype C. Keeps the sines that consecutive positions share, so make one a
/// thread, not one a row.
template <typename C>
class EncodingRows {
 public:
  /// Numbers that may be read past a row's end: two of the widest vectors.
  static constexpr int64_t kSlack = 2 * 64 / static_cast<int64_t>(sizeof(C));

  EncodingRows(const EncodingSource& source, int64_t channels)
      : source_(source),
        channels_(channels),
        stride_(std::max(channels, 2 * source.n) + kSlack),
        phases_(source.inv_freq, source.n),
        pairs_(new C[2 * source.n + 1]) {}

  /// Distance between rows in a buffer of them.
  int64_t stride() const { return stride_; }

  std::unique_ptr<C[]> buffer(int64_t rows) const {
    return std::unique_ptr<C[]>(new C[rows * stride_]());
  }

  void row(double position, C* out) {
    const int64_t n = source_.n;
    if (source_.interleaved) {
      C* sin = pairs_.get();
      C* cos = sin + n;
      phases_.row(position, cos, sin);
      for (int64_t i = 0; i < n; ++i) {
        out[2 * i] = sin[i];
        out[2 * i + 1] = cos[i];
      }
    } else {
      phases_.row(position, out + n, out);
    }
    if (2 * n < channels_) {
      out[2 * n] = C(0);
    }
  }

 private:
  EncodingSource source_;
  int64_t channels_, stride_;
  core::PhaseRows phases_;
  std::unique_ptr<C[]> pairs_;
};

}  // namespace
}  // namespace posenc::absolute
