#pragma once

#include <posenc/core/macros.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace posenc::bias {

/// What biased attention needs to know of a bias, and all it knows: the tile loops are templates
/// over a class like this one, so that another bias is another class and no new loop.
///
/// A distance is key position − query position. `coefficient` is what a query row keeps of its
/// (batch, head).
///
/// ALiBi (Press et al. 2022, arXiv:2108.12409): −slope · |distance|.
struct AlibiBias {
  const double* slopes;  ///< one per (batch, head)
  int64_t batch_stride;  ///< 0 where all batches share the slopes

  /// Where the coefficient of a (batch, head) is read from.
  POSENC_HD const double* coefficient_at(int64_t batch, int64_t head) const {
    return slopes + batch * batch_stride + head;
  }
  double coefficient(int64_t batch, int64_t head) const { return *coefficient_at(batch, head); }

  /// score + bias, for one number or a vector of them (T is double, float or at::vec::Vectorized of
  /// it).
  template <typename T>
  POSENC_HD static T add(const T& score, const T& coefficient, const T& abs_distance) {
    return score - coefficient * abs_distance;
  }

  /// d(bias)/d(coefficient).
  template <typename T>
  POSENC_HD static T grad(const T& abs_distance) {
    return T(0) - abs_distance;
  }

  /// The largest bias over all distances with nearest ≤ |distance| ≤ farthest. NaN for a NaN
  /// coefficient.
  template <typename T>
  POSENC_HD static T upper(T coefficient, T nearest, T farthest) {
    return coefficient >= 0 ? -coefficient * nearest : -coefficient * farthest;
  }

  /// log of Σ exp(bias(d) − bias(d0)) over d = d0, d0 + 1, …: what all keys beyond a distance weigh
  /// at most, next to the key at that distance, when positions are consecutive. Infinite for a bias
  /// that does not decay.
  template <typename T>
  POSENC_HD static T log_tail(T coefficient) {
    return coefficient > 0 ? -std::log(-std::expm1(-coefficient))
                           : static_cast<T>(std::numeric_limits<double>::infinity());
  }

  /// By how much the bias changes at most when a distance changes by 1: what rounding of positions
  /// costs.
  template <typename T>
  POSENC_HD static T steepness(T coefficient) {
    return coefficient < 0 ? -coefficient : coefficient;
  }
};

}  // namespace posenc::bias
