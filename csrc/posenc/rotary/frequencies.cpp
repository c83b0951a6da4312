#include <c10/util/Exception.h>
#include <posenc/rotary/rotary.h>

#include <cmath>

namespace posenc {

std::vector<double> rope_inv_freq(int64_t dim, double base) {
  TORCH_CHECK_VALUE(dim > 0 && dim % 2 == 0,
                    "rope_inv_freq: expected an even, positive number of rotated channels, got ",
                    dim);
  TORCH_CHECK_VALUE(std::isfinite(base) && base > 0,
                    "rope_inv_freq: expected a finite base > 0, got ", base);
  std::vector<double> inv_freq(dim / 2);
  for (int64_t i = 0; i < dim / 2; ++i) {
    inv_freq[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  }
  return inv_freq;
}

}  // namespace posenc
