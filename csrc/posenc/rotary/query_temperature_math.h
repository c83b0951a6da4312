#pragma once

#include <posenc/core/macros.h>

#include <cmath>

namespace posenc::rotary {

/// The temperature of a query at `position`: 1 + beta · ln(1 + step) with step = ⌊(position +
/// shift) / floor_scale⌋, and 1 where the step is not positive.
POSENC_HD inline double temperature_at(double position, double beta, double floor_scale,
                                       double shift) {
  const double step = std::floor((position + shift) / floor_scale);
  return step <= 0 ? 1.0 : 1.0 + beta * std::log1p(step);
}

}  // namespace posenc::rotary
