#pragma once

// The kernel body of _xpos_pairs: a thread a scale and the zero that belongs to it.

#include <posenc/core/gpu_context.h>
#include <posenc/rotary/xpos_math.h>

namespace posenc::rotary {

struct XposDeviceParams {
  const double* positions;
  double* pairs;  ///< (rows, 2n): n scales, then n zeros
  int64_t rows, n;
  double scale_base, centre, gamma, reach;
  bool is_key;
};

inline core::GridShape xpos_grid(const XposDeviceParams& p) {
  core::GridShape grid;
  grid.x = core::ceil_div(p.rows * p.n, grid.threads);
  return grid;
}

template <class Ctx>
POSENC_HD void xpos_body(const Ctx& gpu, const XposDeviceParams& p) {
  const int64_t item = gpu.block(0) * int64_t{gpu.threads()} + gpu.thread();
  if (item >= p.rows * p.n) {
    return;
  }
  const int64_t row = item / p.n, i = item - row * p.n;
  const double distance = gpu.load(p.positions + row) - p.centre;
  gpu.require(std::fabs(distance) <= p.reach,  // not so for a NaN
              "xpos_embedding: expected positions within xpos_reach of the centre");
  const double rate = xpos_rate(static_cast<double>(i), 2.0 * static_cast<double>(p.n), p.gamma,
                                p.scale_base, p.is_key);
  gpu.store(p.pairs + row * 2 * p.n + i, std::exp(distance * rate));
  gpu.store(p.pairs + row * 2 * p.n + p.n + i, 0.0);
}

}  // namespace posenc::rotary
