// Lists of numbers on their way to the GPU, on the host.

#include <posenc/core/float_list_device.h>

#include "support/gpu_tensors.h"

namespace posenc::test {
namespace {

TEST(FloatListDevice, EveryNumberOnce) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    for (const int count : {0, 1, 33, 256}) {
      core::FloatListParams p{};
      const at::Tensor out = at::zeros({count}, dtype);
      p.out = out.mutable_data_ptr();
      p.count = count;
      p.is_double = dtype == at::kDouble;
      for (int i = 0; i < count; ++i) {
        p.values[i] = 1.0 / (i + 3);
      }
      HostGpu gpu;
      if (count > 0) {
        writable(gpu, out, "out");
      }
      gpu.run(core::float_list_grid(p), [&](const HostContext& c) { core::float_list_body(c, p); });
      if (count > 0) {
        written_once(gpu, out);
      }
      EXPECT_EQ(gpu.report(), "");
      const at::Tensor want = at::arange(count, at::kDouble).add(3).reciprocal().to(dtype);
      EXPECT_TRUE(at::equal(out, want));
    }
  }
}

}  // namespace
}  // namespace posenc::test
