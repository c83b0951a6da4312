// The host's stand-in for a GPU: that it runs what CUDA would run, and that it finds the mistakes
// it is there to find.

#include <gtest/gtest.h>
#include <posenc/core/gpu_context.h>

#include <numeric>
#include <vector>

#include "support/host_gpu.h"

namespace {

using posenc::core::GridShape;
using posenc::core::Pack;
using posenc::test::HostContext;
using posenc::test::HostGpu;

template <class Ctx>
int64_t index_of(const Ctx& gpu) {
  return gpu.block(0) * int64_t{gpu.threads()} + gpu.thread();
}

TEST(HostGpu, RunsEveryThreadOfTheGridOnce) {
  const GridShape grid{3, 2, 2, 64, 0};
  std::vector<int> seen(3 * 2 * 2 * 64, -1);
  HostGpu gpu;
  gpu.writable(seen.data(), seen.size(), "seen");
  gpu.run(grid, [&](const HostContext& c) {
    const int block = (c.block(2) * c.blocks(1) + c.block(1)) * c.blocks(0) + c.block(0);
    const int i = block * c.threads() + c.thread();
    c.store(&seen[i], c.warp() * 32 + c.lane());
  });
  gpu.expect_written_once(seen.data(), seen.size());
  EXPECT_EQ(gpu.report(), "");
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], static_cast<int>(i % 64));
  }
}

/// Sums a block's numbers by shuffles and shared memory; `barrier` may be left out.
template <class Ctx>
void sum_body(const Ctx& gpu, const float* x, float* y, bool barrier) {
  float sum = gpu.load(x + index_of(gpu));
  for (int mask = 16; mask > 0; mask /= 2) {
    sum += gpu.shuffle_xor(sum, mask);
  }
  float* sums = gpu.template shared<float>(0);
  if (gpu.lane() == 0) {
    sums[gpu.warp()] = sum;
  }
  if (barrier) {
    gpu.sync();
  }
  float total = 0;
  for (int w = 0; w < gpu.threads() / 32; ++w) {
    total += sums[w];
  }
  gpu.store(y + index_of(gpu), total);
}

TEST(HostGpu, ShufflesBarriersAndSharedMemory) {
  const GridShape grid{4, 1, 1, 128, 4 * sizeof(float)};
  std::vector<float> x(512), y(512);
  std::iota(x.begin(), x.end(), 1.0f);
  for (const auto order : {HostGpu::kForwards, HostGpu::kBackwards}) {
    HostGpu gpu;
    gpu.readable(x.data(), x.size(), "x");
    gpu.writable(y.data(), y.size(), "y");
    gpu.run(
        grid, [&](const HostContext& c) { sum_body(c, x.data(), y.data(), true); }, order);
    gpu.expect_written_once(y.data(), y.size());
    EXPECT_EQ(gpu.report(), "");
    for (int i = 0; i < 512; ++i) {
      const int first = i / 128 * 128 + 1;
      EXPECT_EQ(y[i], 128 * (2 * first + 127) / 2.0f);
    }
    // Without the barrier some thread reads what is not there yet: a NaN.
    gpu.run(
        grid, [&](const HostContext& c) { sum_body(c, x.data(), y.data(), false); }, order);
    EXPECT_FALSE(std::accumulate(y.begin(), y.end(), 0.0f) > 0);
  }
}

TEST(HostGpu, ShufflesReadTheLaneThatIsNamed) {
  std::vector<int> y(64);
  HostGpu gpu;
  gpu.writable(y.data(), y.size(), "y");
  gpu.run({1, 1, 1, 64, 0}, [&](const HostContext& c) {
    const int a = c.shuffle(c.thread(), 5);
    const int b = c.shuffle(c.thread() * 100, (c.lane() + 1) % 32);  // at once after the first
    c.store(&y[c.thread()], a + b);
  });
  EXPECT_EQ(gpu.report(), "");
  for (int t = 0; t < 64; ++t) {
    EXPECT_EQ(y[t], t / 32 * 32 + 5 + (t / 32 * 32 + (t + 1) % 32) * 100);
  }
}

/// The report after one launch of `f` with a block of 64 threads over x (64 floats to read) and y
/// (64 to write).
template <class F>
std::string report_of(const F& f) {
  struct Tensors {
    alignas(16) float x[64];
    char gap[256];
    alignas(16) float y[64];
  };
  static Tensors tensors;
  float *x = tensors.x, *y = tensors.y;
  HostGpu gpu;
  gpu.readable(x, 64, "x");
  gpu.writable(y, 64, "y");
  gpu.run({2, 1, 1, 64, 16}, [&](const HostContext& c) { f(c, x, y); });
  return gpu.report();
}

bool tells(const std::string& report, const char* text) {
  return report.find(text) != std::string::npos;
}

TEST(HostGpu, ReportsAccessesThatAreNotAllowed) {
  EXPECT_EQ(report_of([](const HostContext& c, float* x, float*) { c.load(x + c.thread()); }), "");
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float* x, float*) { c.load(x + 64); }),
                    "outside of the tensors, at x + 64"));
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float* x, float*) { c.load(x - 1); }),
                    "outside of the tensors, at x + -1"));
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float* x, float*) { c.store(x, 1.0f); }),
                    "x + 0, which is to be read only"));
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float* x, float*) {
                      c.load(reinterpret_cast<const Pack<float, 4>*>(x + 1));
                    }),
                    "no multiple"));
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float*, float*) {
                      c.shared<float>(12)[c.lane() / 31] = 1;
                    }),
                    "past the end of shared memory"));
  EXPECT_TRUE(tells(
      report_of([](const HostContext& c, float*, float*) { c.require(c.lane() < 3, "op: text"); }),
      "required: op: text"));
}

TEST(HostGpu, ReportsRaces) {
  const auto first = [](const HostContext& c) { return c.block(0) == 0; };
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float*, float* y) {
                      c.store(y + c.thread(), 1.0f);  // both blocks
                    }),
                    "which another thread has written"));
  EXPECT_TRUE(tells(report_of([&](const HostContext& c, float*, float* y) {
                      if (first(c)) {
                        c.store(y + c.thread(), 1.0f);
                        c.load(y + c.thread() / 2);
                      }
                    }),
                    "which another thread has written"));
  EXPECT_TRUE(tells(report_of([&](const HostContext& c, float*, float* y) {
                      if (first(c)) {
                        c.load(y + (c.thread() + 1) % 64);
                        c.store(y + c.thread(), 1.0f);
                      }
                    }),
                    "which another thread reads"));
  EXPECT_EQ(report_of([&](const HostContext& c, float*, float* y) {
              if (first(c)) {
                c.load(y + (c.thread() + 1) % 64);
                c.sync();
                c.store(y + c.thread(), 1.0f);
                c.sync();
                c.load(y + 63 - c.thread());
              }
            }),
            "");
}

TEST(HostGpu, ReportsBarriersThatSomeThreadsMiss) {
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float*, float*) {
                      if (c.thread() < 32) {
                        c.sync();
                      }
                    }),
                    "thread 32: misses the block's barrier"));
  EXPECT_TRUE(tells(report_of([](const HostContext& c, float*, float*) {
                      if (c.lane() != 7) {
                        c.shuffle_xor(1, 1);
                      }
                    }),
                    "thread 7: misses the warp's operation"));
  const auto two_barriers = [](const HostContext& c, float*, float*) {
    if (c.thread() < 32) {
      c.sync();
    } else {
      c.sync();
    }
  };
  EXPECT_TRUE(tells(report_of(two_barriers), "misses the block's barrier"));
}

TEST(HostGpu, CountsWrites) {
  std::vector<float> y(70);
  HostGpu gpu;
  gpu.writable(y.data(), y.size(), "y");
  gpu.run({1, 1, 1, 64, 0}, [&](const HostContext& c) { c.store(&y[c.thread()], 1.0f); });
  gpu.expect_written_once(y.data(), 64);
  EXPECT_EQ(gpu.report(), "");
  gpu.expect_written_once(y.data(), 65);
  EXPECT_EQ(gpu.report(), "y + 64 was written 0 times, expected 1\n");
  gpu.expect_written<float>(y.data(), 70, [](int64_t i) { return i < 64 ? 1 : 0; });
  EXPECT_EQ(gpu.report(), "");
}

TEST(HostGpu, VirtualTensorsReachPast2To31) {
  const int64_t n = int64_t{5} << 30;
  HostGpu gpu;
  auto* x = gpu.virtual_tensor<float>(
      n, "x", [](int64_t i) { return static_cast<float>(i >> 20); }, false);
  auto* y = gpu.virtual_tensor<float>(
      n, "y", [](int64_t) { return 0.0f; }, true);
  const GridShape grid{n / 256, 1, 1, 64, 0};
  using P = Pack<float, 4>;
  gpu.run(grid, {0, n / 256 - 1}, [&](const HostContext& c) {
    P pack = c.load(reinterpret_cast<const P*>(x) + index_of(c));
    pack[0] += 1;
    c.store(reinterpret_cast<P*>(y) + index_of(c), pack);
  });
  EXPECT_EQ(gpu.report(), "");
  EXPECT_EQ(gpu.wide_accesses(), 2 * 64 * 2);
  const auto written = gpu.written(y);
  EXPECT_EQ(written.size(), 512u);
  EXPECT_EQ(written.at(n - 4), static_cast<float>(((n - 4) >> 20) + 1));
  EXPECT_EQ(written.at(n - 1), static_cast<float>((n - 1) >> 20));
  gpu.expect_written_once(y + n - 256, 256);
  EXPECT_EQ(gpu.report(), "");
}

}  // namespace
