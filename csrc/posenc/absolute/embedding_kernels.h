#pragma once

#include <posenc/absolute/encoding_source.h>
#include <posenc/absolute/row_walk.h>
#include <posenc/core/isa.h>

#include <cstdint>

namespace posenc::absolute {

/// y (batch, length, channels), contiguous: weight[id] * scale + encoding. Every id has been
/// checked against the table.
struct EmbedTokensParams {
  EncodingSource source;
  TileGrid grid;
  int64_t batch = 1, length = 1, channels = 1;
  const int64_t* input_ids = nullptr;  ///< (batch, length), contiguous
  const void* weight = nullptr;
  int64_t weight_row_stride = 0;  ///< elements; the channels of a row lie side by side
  double scale = 1;
  void* y = nullptr;
};

struct EmbeddingKernels {
  /// Over tasks of the grid [begin, end).
  using EmbedTokens = void (*)(const EmbedTokensParams& params, int64_t begin, int64_t end);
  EmbedTokens f64, f32, bf16, f16;
};
POSENC_DECLARE_ISA_TABLE(EmbeddingKernels, embedding_kernels)

}  // namespace posenc::absolute
