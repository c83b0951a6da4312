#pragma once

// The scale of xPos, for its operators.

#include <c10/core/ScalarType.h>

#include <string>

namespace posenc::rotary {

/// ζ_i of a rotated width `dim`, for a number i or a tensor of them.
template <typename T>
T xpos_zeta(const T& i, double dim, double gamma) {
  return (i * 2.0 + gamma * dim) / ((1.0 + gamma) * dim);
}

/// The error for a position too far from the centre; `got` says which.
std::string xpos_too_far(double centre, double reach, at::ScalarType dtype, const std::string& got);

/// The same with the position in it.
std::string xpos_too_far(double centre, double reach, at::ScalarType dtype, double position);

}  // namespace posenc::rotary
