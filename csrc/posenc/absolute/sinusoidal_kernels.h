#pragma once

#include <posenc/absolute/encoding_source.h>
#include <posenc/absolute/row_walk.h>
#include <posenc/core/isa.h>

#include <cstdint>

namespace posenc::absolute {

/// y (count, channels), contiguous: the encoding of the positions 0 ... count-1 of the source.
struct EncodeParams {
  EncodingSource source;
  int64_t channels = 0;
  void* y = nullptr;
};

/// y = x * scale + encoding over the rows of a walk.
struct AddSinusoidalParams {
  EncodingSource source;
  RowWalk walk;
  TileGrid grid;
  double scale = 1;
  const void* x = nullptr;
  void* y = nullptr;
};

/// Loops for one dtype over rows (encode) or tasks of the grid (add) [begin, end).
struct SinusoidalLoops {
  void (*encode)(const EncodeParams& params, int64_t begin, int64_t end);
  void (*add)(const AddSinusoidalParams& params, int64_t begin, int64_t end);
};

struct SinusoidalKernels {
  SinusoidalLoops f64, f32, bf16, f16;
};
POSENC_DECLARE_ISA_TABLE(SinusoidalKernels, sinusoidal_kernels)

}  // namespace posenc::absolute
