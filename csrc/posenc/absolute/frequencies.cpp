#include <posenc/absolute/frequencies.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace posenc {

std::vector<double> sinusoidal_inv_freq(int64_t d_model, double base, const std::string& spacing) {
  TORCH_CHECK_VALUE(d_model >= 1, "sinusoidal_inv_freq: expected d_model >= 1, got ", d_model);
  TORCH_CHECK_VALUE(std::isfinite(base) && base > 0,
                    "sinusoidal_inv_freq: expected a finite base > 0, got ", base);
  const bool standard = spacing == "standard";
  TORCH_CHECK_VALUE(standard || spacing == "half_minus_one",
                    "sinusoidal_inv_freq: expected spacing 'standard' or 'half_minus_one', "
                    "got '",
                    spacing, "'");
  // Numerator and denominator stay whole numbers up to the one division, so the
  // exponent is rounded once.
  const int64_t count = standard ? (d_model + 1) / 2 : d_model / 2;
  const double step = standard ? 2. : 1.;
  const double span = static_cast<double>(standard ? d_model : std::max<int64_t>(count - 1, 1));
  std::vector<double> inv_freq(count);
  for (int64_t i = 0; i < count; ++i) {
    inv_freq[i] = std::pow(base, -(step * static_cast<double>(i)) / span);
  }
  return inv_freq;
}

}  // namespace posenc
