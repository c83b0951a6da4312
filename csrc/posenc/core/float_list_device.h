#pragma once

// A list of numbers that becomes a tensor on the GPU by way of a kernel's parameters: no copy from
// host memory, which a CUDA graph would read again when it is replayed.

#include <posenc/core/gpu_context.h>

namespace posenc::core {

struct FloatListParams {
  static constexpr int kMost = 256;

  void* out;
  int32_t count;
  bool is_double;  ///< else float
  double values[kMost];
};

inline GridShape float_list_grid(const FloatListParams& p) {
  GridShape grid;
  grid.threads = FloatListParams::kMost;
  grid.x = p.count > 0 ? 1 : 0;
  return grid;
}

template <class Ctx>
POSENC_HD void float_list_body(const Ctx& gpu, const FloatListParams& p) {
  const int i = gpu.thread();
  if (i < p.count && p.is_double) {
    gpu.store(static_cast<double*>(p.out) + i, p.values[i]);
  } else if (i < p.count) {
    gpu.store(static_cast<float*>(p.out) + i, static_cast<float>(p.values[i]));
  }
}

}  // namespace posenc::core
