#pragma once

#include <ATen/core/Tensor.h>
#include <posenc/core/macros.h>

#include <cstdint>
#include <utility>

namespace posenc::nn {

/// Keys and values of the tokens so far, for decoding: hand the same cache to forward_cached call
/// after call, and prefill and steps together equal one pass.
///
/// One layer, one cache. Memory grows by doubling, so a step costs no copy of the past; where a
/// gradient is recorded the parts are concatenated instead. Copies of the object share memory until
/// one of them grows.
class POSENC_API KVCache {
 public:
  /// Adds keys and values (B, Hkv, L, D) of new tokens.
  /// \param positions (1 or B, L) of theirs, or undefined where they continue at size(). An earlier
  /// part without positions counts
  ///   from 0.
  /// \param track_norms keeps key_norms() up to date.
  void append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& positions,
              bool track_norms);

  /// Tokens held.
  int64_t size() const { return size_; }
  /// (B, Hkv, size, D). Undefined while empty.
  at::Tensor keys() const;
  at::Tensor values() const;
  /// (1 or B, size), or undefined where they are 0 … size − 1.
  at::Tensor positions() const { return positions_; }
  /// Largest key norm of each block, as alibi_key_norms makes it; undefined where it was not
  /// tracked from the start.
  at::Tensor key_norms() const { return norms_; }
  /// Forgets everything.
  void clear();

 private:
  at::Tensor k_, v_;  // (B, Hkv, capacity ≥ size, D)
  at::Tensor positions_, norms_;
  int64_t size_ = 0;
};

}  // namespace posenc::nn
