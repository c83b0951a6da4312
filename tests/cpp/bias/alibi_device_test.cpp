// The CUDA kernels of alibi_bias and alibi_softmax, run on the host over their own grids.

#include <posenc/bias/alibi.h>
#include <posenc/bias/alibi_device_args.h>

#include <cmath>
#include <limits>

#include "support/gpu_tensors.h"

namespace posenc::test {
namespace {

using bias::AlibiBiasDeviceParams;
using bias::AlibiSoftmaxDeviceParams;
using core::kFullPack;

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

void run_bias(HostGpu& gpu, const AlibiBiasDeviceParams& p, at::ScalarType dtype,
              HostGpu::Order order) {
  with_number(dtype, [&](auto number) {
    using T = decltype(number);
    gpu.run(
        bias::alibi_bias_grid<T>(p),
        [&](const HostContext& c) {
          p.packed ? bias::alibi_bias_body<T, kFullPack<T>>(c, p)
                   : bias::alibi_bias_body<T, 1>(c, p);
        },
        order);
  });
}

void run_softmax(HostGpu& gpu, const AlibiSoftmaxDeviceParams& p, at::ScalarType dtype,
                 bool backward, std::vector<int64_t> blocks = {},
                 HostGpu::Order order = HostGpu::kForwards) {
  with_number(dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int N = kFullPack<T>;
    bias::with_plan(bias::softmax_plan<T>(p.k_len, backward), [&](auto whole, auto kept) {
      constexpr bool kWhole = decltype(whole)::value, kKept = decltype(kept)::value;
      gpu.run(
          bias::softmax_grid<T>(p, backward), blocks,
          [&](const HostContext& c) {
            if (backward) {
              p.packed ? bias::alibi_softmax_backward_body<T, N, kWhole, kKept>(c, p)
                       : bias::alibi_softmax_backward_body<T, 1, kWhole, kKept>(c, p);
            } else {
              p.packed ? bias::alibi_softmax_body<T, N, kWhole, kKept>(c, p)
                       : bias::alibi_softmax_body<T, 1, kWhole, kKept>(c, p);
            }
          },
          order);
    });
  });
}

/// Not small beside 1: the roundings of a row's softmax.
double near(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 2e-6 : 1.01 * rounding(dtype);
}

TEST(AlibiDevice, BiasMatchesCpu) {
  for (const auto dtype : kGpuDtypes) {
    for (const auto& [q_len, k_len] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 16}, {9, 7}, {3, 64}, {1, 1030}}) {
      for (const bool causal : {false, true}) {
        for (const int64_t offset : {k_len - q_len, int64_t{-2}, (int64_t{1} << 33) + 1}) {
          const std::vector<double> slopes = {0.5, -0.25, 0.125};
          const at::Tensor out = at::empty({3, q_len, k_len}, dtype);
          const at::Tensor wide =
              at::tensor(slopes, dtype == at::kDouble ? at::kDouble : at::kFloat);
          const AlibiBiasDeviceParams p =
              bias::bias_device_params(wide, q_len, k_len, offset, causal, out);
          EXPECT_EQ(p.packed, k_len * out.element_size() % 16 == 0);
          for (const auto order : {HostGpu::kForwards, HostGpu::kBackwards}) {
            HostGpu gpu;
            readable(gpu, wide, "slopes");
            writable(gpu, out, "out");
            run_bias(gpu, p, dtype, order);
            written_once(gpu, out);
            EXPECT_EQ(gpu.report(), "");
            EXPECT_EQ(gpu.wide_accesses() > 0, p.packed);
            // In the dtype: float16 has no number for the farthest.
            expect_equal_or_near(out, alibi_bias(slopes, q_len, k_len, offset, causal, dtype), 0.);
          }
        }
      }
    }
  }
}

struct Case {
  at::Tensor scores, mask;
  bool causal = false;
  double scale = 1.;
  std::optional<int64_t> offset;
};

/// The kernel on one case, and what can be said of every launch.
at::Tensor softmax_on_host(const Case& c, const std::vector<double>& slopes,
                           HostGpu::Order order = HostGpu::kForwards) {
  const at::Tensor out = at::full_like(c.scores, 7.);
  const at::Tensor mask = c.mask.defined() ? c.mask.expand(c.scores.sizes()) : at::Tensor();
  const AlibiSoftmaxDeviceParams p =
      bias::softmax_device_params(c.scores, slopes, mask, c.causal, c.scale,
                                  c.offset.value_or(c.scores.size(3) - c.scores.size(2)), out);
  HostGpu gpu;
  readable(gpu, c.scores, "scores");
  writable(gpu, out, "out");
  if (mask.defined()) {
    readable(gpu, mask, "mask");
  }
  run_softmax(gpu, p, c.scores.scalar_type(), /*backward=*/false, {}, order);
  written_once(gpu, out);
  EXPECT_EQ(gpu.report(), "");
  EXPECT_EQ(gpu.wide_accesses() > 0, p.packed);
  return out;
}

void expect_softmax(const Case& c, const std::vector<double>& slopes) {
  const at::Tensor want =
      alibi_softmax(c.scores.to(at::kDouble), slopes,
                    c.mask.defined() ? std::optional<at::Tensor>(c.mask) : std::nullopt, c.causal,
                    c.scale, c.offset);
  const at::Tensor got = softmax_on_host(c, slopes);
  expect_equal_or_near(got, want, near(c.scores.scalar_type()));
  expect_equal_or_near(softmax_on_host(c, slopes, HostGpu::kBackwards), got, 0.);
}

const std::vector<double> kSlopes = {0.5, 0.01};

TEST(AlibiDevice, SoftmaxOfEveryLengthAndDtype) {
  at::manual_seed(0);
  for (const auto dtype : kGpuDtypes) {
    // One key; odd; packs; beyond a warp's share; a block a row; read a second time.
    for (const int64_t keys : {1, 7, 64, 513, 1024, 2056, 2600, 13000, 25600}) {
      const int64_t rows = keys > 2000 ? 2 : 5;
      Case c;
      c.scores = at::randn({keys > 2000 ? 1 : 2, 2, rows, keys}, at::kDouble).mul(3).to(dtype);
      c.causal = keys % 2 == 0;
      c.scale = 0.7;
      expect_softmax(c, kSlopes);
    }
  }
}

TEST(AlibiDevice, SoftmaxUnderMasksAndOffsets) {
  at::manual_seed(1);
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t keys : {7, 40, 2056}) {
      const at::Tensor scores = at::randn({2, 2, 4, keys}, at::kDouble).mul(2).to(dtype);
      std::vector<at::Tensor> masks = {at::Tensor()};
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{2, 2, 4, keys}, {2, 1, 1, keys}, {4, keys}, {2, 1, 4, 1}}) {
        masks.push_back(at::rand(shape) < 0.6);
      }
      masks.push_back((at::rand({2, 1, keys, 4}) < 0.6).transpose(2, 3));  // its own strides
      for (const at::Tensor& mask : masks) {
        for (const std::optional<int64_t>& offset :
             {std::optional<int64_t>(), std::optional<int64_t>(-2), std::optional<int64_t>(1)}) {
          for (const bool causal : {false, true}) {
            expect_softmax({scores, mask, causal, 1.3, offset}, kSlopes);
          }
        }
      }
    }
  }
}

TEST(AlibiDevice, SoftmaxOfAnyStrides) {
  at::manual_seed(2);
  for (const auto dtype : kGpuDtypes) {
    for (const at::Tensor& scores :
         {at::randn({2, 2, 40, 8}, at::kDouble).to(dtype).transpose(2, 3),
          at::randn({2, 8, 2, 40}, at::kDouble).to(dtype).transpose(1, 2),
          at::randn({2, 2, 8, 80}, at::kDouble).to(dtype).slice(3, 0, 80, 2),
          at::randn({2, 2, 8, 45}, at::kDouble).to(dtype).narrow(3, 3, 40),
          at::randn({2, 2, 8, 56}, at::kDouble).to(dtype).narrow(3, 8, 40),
          at::randn({1, 2, 8, 40}, at::kDouble).to(dtype).expand({2, 2, 8, 40})}) {
      Case c;
      c.scores = scores;
      c.causal = true;
      expect_softmax(c, kSlopes);
    }
  }
}

TEST(AlibiDevice, SoftmaxOfWhatIsNotFinite) {
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t keys : {8, 2056}) {
      at::Tensor scores = at::randn({1, 2, 7, keys}, at::kDouble);
      scores[0][0][0][1] = kNan;                     // a NaN that counts
      scores[0][0][1][2] = kNan;                     // one under the mask
      scores[0][0][2][1] = kInf;                     // infinite
      scores[0][0][3] = at::full({keys}, -kInf);     // nothing but −infinity
      scores[0][0][4].slice(0, 0, 4).fill_(-kInf);   // some of it
      scores[0][1][5] = at::full({keys}, kNan);      // no key, and NaN beneath
      scores[0][1][6].slice(0, 0, keys - 1) = kInf;  // infinite beneath the mask
      at::Tensor mask = at::ones({1, 2, 7, keys}, at::kBool);
      mask[0][0][0][3] = false;
      mask[0][0][1][2] = false;
      mask[0][0][2][4] = false;
      mask[0][0][3][0] = false;
      mask[0][1][5].fill_(false);
      mask[0][1][6].slice(0, 0, keys - 1).fill_(false);
      Case c;
      c.scores = scores.to(dtype);
      c.mask = mask;
      expect_softmax(c, kSlopes);
      const at::Tensor out = softmax_on_host(c, kSlopes).to(at::kDouble);
      EXPECT_EQ(out[0][1][5].abs().sum().item<double>(), 0.) << "a row without a key";
      EXPECT_EQ(out[0][1][6][keys - 1].item<double>(), 1.);
      EXPECT_TRUE(out[0][0][0][0].isnan().item<bool>());
      EXPECT_EQ(out[0][0][0][3].item<double>(), 0.) << "masked, in a row that is NaN";
    }
  }
}

TEST(AlibiDevice, LargeScoresNeitherOverflowNorVanish) {
  Case c;
  c.scores = at::linspace(-3000., 3000., 600).to(at::kFloat).reshape({1, 2, 1, 300});
  c.scale = 20.;
  expect_softmax(c, kSlopes);
}

TEST(AlibiDevice, SoftmaxBackward) {
  at::manual_seed(3);
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t keys : {1, 7, 64, 1000, 2056, 6200, 13008}) {
      const at::Tensor scores = at::randn({1, 2, 3, keys}, at::kDouble).mul(2);
      const at::Tensor weights =
          alibi_softmax(scores, kSlopes, std::nullopt, /*is_causal=*/true, 1., 1).to(dtype);
      at::Tensor grad = at::randn({1, 2, 3, keys}, at::kDouble).to(dtype);
      grad.index_put_({weights == 0}, at::full({}, kNan, grad.options()));  // never to be seen
      for (const bool odd : {false, true}) {
        const at::Tensor g = odd ? grad.transpose(2, 3).contiguous().transpose(2, 3) : grad;
        const at::Tensor out = at::full_like(weights, 7.);
        const AlibiSoftmaxDeviceParams p =
            bias::softmax_backward_device_params(g, weights, 0.7, out);
        HostGpu gpu;
        readable(gpu, g, "grad");
        readable(gpu, weights, "weights");
        writable(gpu, out, "out");
        run_softmax(gpu, p, dtype, /*backward=*/true);
        written_once(gpu, out);
        EXPECT_EQ(gpu.report(), "");
        EXPECT_EQ(gpu.wide_accesses() > 0, p.packed);
        const at::Tensor w = weights.to(at::kDouble), wide = grad.to(at::kDouble).nan_to_num(0.);
        const at::Tensor want = 0.7 * w * (wide - (w * wide).sum(-1, /*keepdim=*/true));
        expect_equal_or_near(out, want, 4 * near(dtype));
      }
    }
  }
}

TEST(AlibiDevice, OffsetsPastTwoToThe31) {
  // (1, 2, 50000, 50000): 5·10⁹ elements without memory; the last rows.
  const int64_t length = 50000;
  HostGpu gpu;
  const auto value = [](int64_t i) { return static_cast<float>(i % 91) * 0.1f; };
  AlibiSoftmaxDeviceParams p{};
  const int64_t count = 2 * length * length;
  p.scores = gpu.virtual_tensor<float>(count, "scores", value, false);
  auto* out = gpu.virtual_tensor<float>(count, "out", value, true);
  p.out = out;
  p.score_strides = p.out_strides = {count, length * length, length, 1};
  p.heads = 2;
  p.q_len = p.k_len = length;
  p.rows = 2 * length;
  p.scale = 1;
  p.packed = true;
  p.slopes[0] = 0.5;
  p.slopes[1] = 0.001;
  const int64_t last = p.rows - 1;
  run_softmax(gpu, p, at::kFloat, /*backward=*/false, {last});
  EXPECT_EQ(gpu.report(), "");
  const auto written = gpu.written(static_cast<const float*>(out));
  ASSERT_EQ(written.size(), static_cast<size_t>(length));
  at::Tensor row = at::empty({1, 1, 1, length}), got = at::empty({length}, at::kDouble);
  for (int64_t j = 0; j < length; ++j) {
    row.mutable_data_ptr<float>()[j] = value(last * length + j);
    const auto found = written.find(last * length + j);
    ASSERT_NE(found, written.end());
    got.mutable_data_ptr<double>()[j] = found->second;
  }
  const at::Tensor want = alibi_softmax(row.to(at::kDouble), {0.001}, {}, false, 1.);
  expect_equal_or_near(got, want.reshape({length}), 2e-6);

  AlibiBiasDeviceParams b{};
  const at::Tensor slopes = at::tensor({0.5f, 0.25f});
  readable(gpu, slopes, "slopes");
  auto* matrix = gpu.virtual_tensor<float>(count, "bias", value, true);
  b.out = matrix;
  b.slopes = slopes.const_data_ptr();
  b.rows = 2 * length;
  b.q_len = b.k_len = length;
  b.packed = true;
  const core::GridShape grid = bias::alibi_bias_grid<float>(b);
  gpu.run(grid, {grid.x * grid.y - 1},
          [&](const HostContext& c) { bias::alibi_bias_body<float, 4>(c, b); });
  EXPECT_EQ(gpu.report(), "");
  const auto bias = gpu.written(static_cast<const float*>(matrix));
  const auto farthest = bias.find(count - length + length - 1);
  ASSERT_NE(farthest, bias.end());
  EXPECT_EQ(farthest->second, 0.f);
  for (const auto& [index, v] : bias) {
    const int64_t i = index / length % length, j = index % length;
    ASSERT_EQ(index / length / length, 1);
    ASSERT_EQ(v, -0.25f * static_cast<float>(std::abs(i - j)));
  }
}

TEST(AlibiDevice, MoreRowsThanOneAxisOfBlocks) {
  AlibiSoftmaxDeviceParams p{};
  p.k_len = 32768;
  p.rows = int64_t{5} << 31;
  const core::GridShape grid = bias::softmax_grid<float>(p, false);
  EXPECT_LE(grid.x, core::kMaxGridX);
  EXPECT_LE(grid.y, core::kMaxGridYZ);
  EXPECT_GE(grid.x * grid.y, p.rows);
}

}  // namespace
}  // namespace posenc::test
