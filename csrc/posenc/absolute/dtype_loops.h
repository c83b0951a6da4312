#pragma once

#include <c10/core/ScalarType.h>

namespace posenc::absolute {

/// The loops for a dtype that check_floating has let through.
template <typename Kernels>
auto loops_for(const Kernels& kernels, at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return kernels.f64;
    case at::kBFloat16:
      return kernels.bf16;
    case at::kHalf:
      return kernels.f16;
    default:
      return kernels.f32;
  }
}

}  // namespace posenc::absolute
