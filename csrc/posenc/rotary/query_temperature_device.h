#pragma once

// The kernel body of _temperature_factor: a thread a position.

#include <posenc/core/gpu_context.h>
#include <posenc/rotary/query_temperature_math.h>

namespace posenc::rotary {

struct TemperatureDeviceParams {
  const double* positions;
  double* factor;
  int64_t n;
  double beta, floor_scale, shift;
};

inline core::GridShape temperature_grid(const TemperatureDeviceParams& p) {
  core::GridShape grid;
  grid.x = core::ceil_div(p.n, grid.threads);
  return grid;
}

template <class Ctx>
POSENC_HD void temperature_body(const Ctx& gpu, const TemperatureDeviceParams& p) {
  const int64_t i = gpu.block(0) * int64_t{gpu.threads()} + gpu.thread();
  if (i < p.n) {
    gpu.store(p.factor + i,
              temperature_at(gpu.load(p.positions + i), p.beta, p.floor_scale, p.shift));
  }
}

}  // namespace posenc::rotary
