#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace posenc::test {

/// Largest |a − b| in float64.
inline double max_error(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) {
    return 0.0;
  }
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Half a unit in the last place of the dtype at magnitude 1: what one rounding costs.
inline double rounding(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1.2e-16;
    case at::kFloat:
      return 6e-8;
    case at::kHalf:
      return 4.9e-4;
    default:
      return 3.9e-3;
  }
}

/// Runs `f` and returns the text of the c10::Error it throws, empty when it throws none.
template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace posenc::test
