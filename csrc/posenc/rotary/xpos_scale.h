#pragma once

// The scale of xPos, for its operators.

#include <c10/core/ScalarType.h>
#include <posenc/rotary/xpos_math.h>

#include <string>

namespace posenc::rotary {

/// The error for a position too far from the centre; `got` says which.
std::string xpos_too_far(double centre, double reach, at::ScalarType dtype, const std::string& got);

/// The same with the position in it.
std::string xpos_too_far(double centre, double reach, at::ScalarType dtype, double position);

}  // namespace posenc::rotary
