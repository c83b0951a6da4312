#pragma once

#include <posenc/core/gpu_types.h>

namespace posenc::core {

/// f(a number of the type that a dtype names): from a value to a template argument.
template <class F>
auto with_number(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::kDouble:
      return f(double());
    case Dtype::kFloat:
      return f(float());
    case Dtype::kHalf:
      return f(Half());
    default:
      return f(BFloat16());
  }
}

}  // namespace posenc::core
