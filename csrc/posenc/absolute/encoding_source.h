#pragma once

#include <cstdint>

namespace posenc::absolute {

/// What the loops need to compute a sinusoidal encoding. Plain data.
struct EncodingSource {
  const double* inv_freq = nullptr;
  int64_t n = 0;  ///< frequencies
  bool interleaved = true;
  const double* positions = nullptr;  ///< nullptr: offset + l
  int64_t positions_batch_stride = 0;
  double offset = 0;

  double position(int64_t b, int64_t l) const {
    return positions ? positions[b * positions_batch_stride + l] : offset + static_cast<double>(l);
  }
};

}  // namespace posenc::absolute
