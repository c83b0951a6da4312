#pragma once

#include <posenc/core/macros.h>

#include <cstdint>

namespace posenc::bias {

/// Strides in elements of a (B, H, L, S) tensor.
struct ScoreStrides {
  int64_t batch, head, row, last;
};

/// How many keys a causal row may see.
POSENC_HD inline int64_t causal_keys(int64_t position, int64_t keys) {
  return position < 0 ? 0 : position + 1 < keys ? position + 1 : keys;
}

}  // namespace posenc::bias
