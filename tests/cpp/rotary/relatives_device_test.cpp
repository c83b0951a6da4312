// The kernels of the queries' temperature and of xPos' scales, over their own grids, against the
// formulas.

#include <gtest/gtest.h>
#include <posenc/rotary/query_temperature_device.h>
#include <posenc/rotary/xpos_device.h>

#include <cmath>
#include <vector>

#include "support/host_gpu.h"

namespace {

using posenc::test::HostContext;
using posenc::test::HostGpu;

TEST(QueryTemperatureDevice, GrowsWithTheStep) {
  for (const int64_t n : {1, 255, 256, 1000}) {
    std::vector<double> positions(n), factor(n);
    for (int64_t i = 0; i < n; ++i) {
      positions[i] = static_cast<double>(3 * i - 5);
    }
    const posenc::rotary::TemperatureDeviceParams p{
        positions.data(), factor.data(), n, 0.1, 16.0, 1.0};
    HostGpu gpu;
    gpu.readable(p.positions, n, "positions");
    gpu.writable(p.factor, n, "factor");
    gpu.run(posenc::rotary::temperature_grid(p),
            [&](const HostContext& c) { posenc::rotary::temperature_body(c, p); });
    gpu.expect_written_once(p.factor, n);
    EXPECT_EQ(gpu.report(), "");
    for (int64_t i = 0; i < n; ++i) {
      const int64_t step = (3 * i - 4) / 16;  // of a negative number 0 or less: no growth
      EXPECT_NEAR(factor[i], 1 + 0.1 * std::log(1.0 + std::max<int64_t>(step, 0)), 1e-15);
    }
  }
}

TEST(XposDevice, ScalesFollowTheDistance) {
  for (const int64_t n : {1, 3, 32}) {
    for (const bool is_key : {false, true}) {
      const int64_t rows = 77;
      std::vector<double> positions(rows), pairs(rows * 2 * n, -1.0);
      for (int64_t i = 0; i < rows; ++i) {
        positions[i] = static_cast<double>(11 * i);
      }
      posenc::rotary::XposDeviceParams p{
          positions.data(), pairs.data(), rows, n, 512.0, 100.0, 0.4, 1000, is_key};
      HostGpu gpu;
      gpu.readable(p.positions, rows, "positions");
      gpu.writable(p.pairs, rows * 2 * n, "pairs");
      const auto launch = [&] {
        gpu.run(posenc::rotary::xpos_grid(p),
                [&](const HostContext& c) { posenc::rotary::xpos_body(c, p); });
      };
      launch();
      gpu.expect_written_once(p.pairs, rows * 2 * n);
      EXPECT_EQ(gpu.report(), "");
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < n; ++i) {
          const double zeta = (i / static_cast<double>(n) + 0.4) / 1.4;
          const double power = (11.0 * row - 100.0) / 512.0 * (is_key ? -1 : 1);
          EXPECT_NEAR(pairs[row * 2 * n + i] / std::pow(zeta, power), 1.0, 1e-13);
          EXPECT_EQ(pairs[row * 2 * n + n + i], 0.0);
        }
      }
      p.reach = 700;
      launch();
      EXPECT_NE(gpu.report().find("required: xpos_embedding: expected positions within"),
                std::string::npos);
    }
  }
}

}  // namespace
