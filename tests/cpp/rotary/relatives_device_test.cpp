// The kernel of the queries' temperature, over its own grid, against the operator on the CPU.

#include <posenc/posenc.h>
#include <posenc/rotary/query_temperature_device.h>

#include "support/host_gpu.h"
#include "support/support.h"

namespace {

using posenc::test::HostContext;
using posenc::test::HostGpu;

TEST(QueryTemperatureDevice, IsTheOperator) {
  for (const int64_t n : {1, 255, 256, 1000}) {
    const at::Tensor ids = torch::arange(n) * 3 - 5;
    const at::Tensor positions = ids.to(at::kDouble), factor = torch::empty_like(positions);
    const posenc::rotary::TemperatureDeviceParams p{
        positions.const_data_ptr<double>(), factor.mutable_data_ptr<double>(), n, 0.1, 16.0, 1.0};
    HostGpu gpu;
    gpu.readable(p.positions, n, "positions");
    gpu.writable(p.factor, n, "factor");
    gpu.run(posenc::rotary::temperature_grid(p),
            [&](const HostContext& c) { posenc::rotary::temperature_body(c, p); });
    gpu.expect_written_once(p.factor, n);
    EXPECT_EQ(gpu.report(), "");
    const at::Tensor ones = torch::ones({n, 1}, at::kDouble);
    const at::Tensor want =
        posenc::query_temperature(ones, p.beta, p.floor_scale, ids, 0, 0, p.shift);
    EXPECT_TRUE(factor.equal(want.squeeze(1)));
  }
}

}  // namespace
