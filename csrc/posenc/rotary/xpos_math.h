#pragma once

#include <posenc/core/macros.h>

#include <cmath>

namespace posenc::rotary {

/// ζ_i of a rotated width `dim`, for a number i or a tensor of them.
template <typename T>
POSENC_HD T xpos_zeta(const T& i, double dim, double gamma) {
  return (i * 2.0 + gamma * dim) / ((1.0 + gamma) * dim);
}

/// ln of the scale of pair i for each position of distance; of keys the inverse scale.
POSENC_HD inline double xpos_rate(double i, double dim, double gamma, double scale_base,
                                  bool is_key) {
  return std::log(xpos_zeta(i, dim, gamma)) / (is_key ? -scale_base : scale_base);
}

}  // namespace posenc::rotary
