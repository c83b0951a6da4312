// The device kernels of alibi_attention, run on the host over their own grids: against the dense
// formula in float64, each output element written once, nothing read outside.

#include "attention/device_attention.h"

namespace {

using namespace posenc::test::attn;
using posenc::core::Dtype;
using posenc::test::HostContext;
using posenc::test::HostGpu;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<char> random_mask(const Call& c, double keep, uint32_t seed = 3) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<char> mask(c.B * c.H * c.L * c.S);
  for (char& m : mask) {
    m = uniform(random) < keep ? 1 : 0;
  }
  return mask;
}

TEST(AttentionDevice, EveryDtypeCausalAndSymmetric) {
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kDouble, Dtype::kHalf, Dtype::kBFloat16}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(dtype) << causal);
      Call c;
      c.dtype = dtype;
      c.causal = causal;
      c.with_dlse = true;
      c.make();
      check(c);
    }
  }
}

TEST(AttentionDevice, TensorCoresInEveryHalfType) {
  for (const Dtype dtype : {Dtype::kHalf, Dtype::kBFloat16}) {
    for (const auto& [d, dv] : {std::pair{64, 64}, {24, 70}, {128, 33}, {1, 130}, {250, 20}}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(dtype) << " " << d << " " << dv);
      Call c;
      c.tensor_cores = true;
      c.dtype = dtype;
      c.H = 2;
      c.Hkv = 1;
      c.causal = d != 24;
      c.with_dlse = true;
      c.D = d;
      c.Dv = dv;
      c.scale = 1 / std::sqrt(static_cast<double>(d));
      c.make();
      check(c);
    }
  }
}

TEST(AttentionDevice, WidthsOfHeads) {
  for (const auto& [d, dv] : {std::pair{1, 3}, {24, 70}, {65, 64}, {130, 40}, {33, 150}}) {
    SCOPED_TRACE(testing::Message() << d << " " << dv);
    Call c;
    c.H = c.Hkv = 1;
    c.L = c.S = 67;
    c.D = d;
    c.Dv = dv;
    c.causal = true;
    c.make();
    check(c);
  }
}

TEST(AttentionDevice, Layouts) {
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kDouble, Dtype::kBFloat16, Dtype::kHalf}) {
    for (const Layout layout : {Layout::kModel, Layout::kStrided}) {
      Call c;
      c.tensor_cores = dtype == Dtype::kHalf;
      c.dtype = dtype;
      c.B = 2;
      c.L = 33;
      c.S = 65;
      c.causal = true;
      c.make(layout);
      check(c, layout);
    }
  }
}

TEST(AttentionDevice, PacksOfSixteenBytesWhereTheyFit) {
  Call c;
  c.H = c.Hkv = 1;
  c.D = c.Dv = 64;
  c.make();
  DeviceRun r(c);
  r.forward();
  const int64_t wide = r.gpu.wide_accesses(), all = r.gpu.accesses();
  EXPECT_EQ(r.result.report, "");
  EXPECT_GT(static_cast<double>(wide), 0.8 * static_cast<double>(all));
}

TEST(AttentionDevice, GroupedHeadsAndDecode) {
  for (const int64_t length : {1, 2, 5, 40}) {
    for (const bool norms : {false, true}) {
      SCOPED_TRACE(testing::Message() << length << norms);
      Call c;
      c.B = 2;
      c.H = 6;
      c.Hkv = 2;
      c.L = length;
      c.S = 150;
      c.causal = true;
      c.with_norms = norms;
      c.make();
      expect_close(run(c, Layout::kHeads, HostGpu::kForwards, false), dense(c, false), 3e-6, false);
      c.with_norms = true;
      check(c);
    }
  }
}

TEST(AttentionDevice, Masks) {
  for (const int kind : {0, 1, 2, 3}) {
    const bool causal = kind % 2 != 0;
    Call c;
    c.tensor_cores = kind > 1;
    c.dtype = c.tensor_cores ? Dtype::kHalf : Dtype::kFloat;
    c.causal = causal;
    c.S = 100;
    c.make();
    c.mask = random_mask(c, 0.3);
    // A row without a key, a block without a key, a row that sees only the farthest block.
    for (int64_t j = 0; j < c.S; ++j) {
      c.mask[5 * c.S + j] = 0;
      c.mask[7 * c.S + j] = j == (causal ? 0 : 99);
    }
    check(c);
  }
}

TEST(AttentionDevice, OffsetsBeforeAndBehindTheKeys) {
  for (const double offset : {-300.0, -30.0, 10.0, 200.0}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << offset << causal);
      Call c;
      c.H = c.Hkv = 1;
      c.offset = offset;
      c.causal = causal;
      c.slopes = {0.05};
      c.make();
      check(c);
    }
  }
}

TEST(AttentionDevice, Positions) {
  for (const bool causal : {false, true}) {
    Call c;
    c.B = 2;
    c.H = c.Hkv = 1;
    c.L = 70;
    c.S = 140;
    c.causal = causal;
    c.slopes = {0.3};
    c.make();
    std::mt19937 random(5);
    for (int64_t b = 0; b < c.B; ++b) {
      for (int64_t i = 0; i < c.L; ++i) {
        c.q_positions.push_back(static_cast<double>(i % 30) + (b == 0 ? 0 : 1e9) + 0.25);
      }
      for (int64_t j = 0; j < c.S; ++j) {
        c.k_positions.push_back(static_cast<double>(random() % 90) + (b == 0 ? 0 : 1e9));
      }
    }
    check(c);
  }
}

TEST(AttentionDevice, SlopesOfEverySign) {
  Call c;
  c.H = c.Hkv = 3;
  c.slopes = {0, -0.02, 1.5};
  c.make();
  check(c);
}

TEST(AttentionDevice, NotANumberWhereItIsSeenAndNowhereElse) {
  for (const bool tensor_cores : {false, true}) {
    Call c;
    c.tensor_cores = tensor_cores;
    c.dtype = tensor_cores ? Dtype::kBFloat16 : Dtype::kFloat;
    c.H = c.Hkv = 1;
    c.L = 70;
    c.S = 130;
    c.causal = true;
    c.make();
    c.mask = random_mask(c, 0.5);
    for (int64_t i = 0; i < c.L; ++i) {
      c.mask[i * c.S + 3] = i == 20;   // NaN in v: one row sees it
      c.mask[i * c.S + 90] = i == 60;  // infinity in k
      c.mask[i * c.S + 40] = 0;        // NaN in k: nobody
    }
    c.v.set(0, 0, 3, 1, kNaN);
    c.k.set(0, 0, 90, 2, kInfinity);
    c.k.set(0, 0, 40, 0, kNaN);
    check(c);
    c.mask.clear();
    c.causal = false;
    c.grad_out.set(0, 0, 9, 2, kInfinity);
    check(c);
  }
}

TEST(AttentionDevice, ScoresOfMinusInfinity) {
  Call c;
  c.H = c.Hkv = 1;
  c.L = 3;
  c.S = 70;
  c.slopes = {kInfinity};
  c.offset = 200;
  c.make();
  const Result r = run(c, Layout::kHeads, HostGpu::kForwards, false);
  for (const double x : r.out) {
    EXPECT_TRUE(std::isnan(x));
  }
  EXPECT_TRUE(std::isnan(r.lse[0]));
  EXPECT_EQ(r.report, "");
}

TEST(AttentionDevice, FarBlocksAreLeftOut) {
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kHalf}) {
    for (const bool causal : {false, true}) {
      Call c;
      c.dtype = dtype;
      c.tensor_cores = true;
      c.H = c.Hkv = 2;
      c.slopes = {1, 0.5};
      c.L = c.S = 450;
      c.causal = causal;
      c.with_counts = true;
      c.make();
      const Result r = run(c);
      expect_close(r, dense(c), tolerance(dtype));
      EXPECT_LT(r.forward_computed, 0.5 * r.forward_possible);
      EXPECT_LT(r.backward_computed, 0.5 * r.backward_possible);
      EXPECT_EQ(r.forward_possible, r.backward_possible);
      EXPECT_EQ(r.forward_possible, c.H * (causal ? 36 : 64));
    }
  }
}

TEST(AttentionDevice, AFarKeyThatReachesTheBoundCounts) {
  // Every key is 0 but a far one, as long as the queries let it be: its weight is e^w of the row's,
  // more than skipping may cost, and its value makes up for that.
  for (const double w : {-3.0, -8.0, -12.0, -16.0}) {
    for (const int64_t length : {1, 40}) {
      SCOPED_TRACE(testing::Message() << w << " " << length);
      Call c;
      c.H = c.Hkv = 1;
      c.L = length;
      c.S = 300;
      c.D = c.Dv = 4;
      c.scale = 1;
      c.slopes = {0.1};
      c.causal = true;
      c.make();
      const auto along = [](double x) {
        return [x](int64_t, int64_t, int64_t, int64_t d) { return d == 0 ? x : 0; };
      };
      c.q.fill(along(1));
      c.k.fill(along(0));
      c.v.fill(along(0));
      const double lse = -std::log(1 - std::exp(-0.1));
      c.k.set(0, 0, 63, 0, 0.1 * 236 + lse + w);  // the nearest key of its block
      c.v.set(0, 0, 63, 0, std::exp(-w));
      const Result r = run(c), want = dense(c);
      expect_close(r, want, 1e-4);
      EXPECT_GT(want.out[4 * (length - 1)], 0.3);
    }
  }
}

TEST(AttentionDevice, PartsOfTheKeysAreSeededByTheNearestBlock) {
  Call c;
  c.H = 4;
  c.Hkv = 1;
  c.L = 1;
  c.S = 1500;
  c.causal = true;
  c.slopes = {1, 0.5, 0.4, 0.3};
  c.with_counts = true;
  c.make();
  DeviceRun r(c);
  r.forward();
  EXPECT_GT(r.p.parts, 1);
  expect_close(r.result, dense(c, false), 3e-6, false);
  EXPECT_LE(r.result.forward_computed, 4);

  Call given = c;
  given.with_norms = false;
  for (int64_t n = 0; n < 24; ++n) {
    given.given_norms.push_back(r.norm.get(n));
  }
  const Result again = run(given, Layout::kHeads, HostGpu::kForwards, false);
  expect_close(again, dense(c, false), 3e-6, false);
  EXPECT_EQ(again.forward_computed, r.result.forward_computed);
}

TEST(AttentionDevice, OffsetsBeyondThirtyTwoBits) {
  // Heads lie 2³¹ elements apart, in addresses without memory.
  static constexpr int64_t kHead = (int64_t{1} << 31) + 128;
  Call c;
  c.causal = true;
  c.L = c.S = 66;
  c.make();
  c.mask = random_mask(c, 0.8);
  DeviceRun r(c);
  const auto far = [&](const Tensor4& t, const char* name) {
    device::View view = t.view;
    view.head = kHead;
    view.batch = 2 * kHead;
    view.data = r.gpu.virtual_tensor<float>(
        2 * kHead, name,
        [&t](int64_t i) {
          const int64_t within = i % kHead;
          return static_cast<float>(
              within < t.L * t.D ? t.get(0, i / kHead, within / t.D, within % t.D) : kNaN);
        },
        /*is_writable=*/true);
    return view;
  };
  const auto written = [&](const device::View& view, int64_t length, int64_t channels) {
    std::vector<double> x(2 * length * channels, kNaN);
    for (const auto& [i, value] : r.gpu.written(static_cast<const float*>(view.data))) {
      EXPECT_LT(i % kHead, length * channels);
      x[i / kHead * length * channels + i % kHead] = value;
    }
    return x;
  };
  r.p.q = far(c.q, "q");
  r.p.k = far(c.k, "k");
  r.p.v = far(c.v, "v");
  r.p.out = far(c.grad_out, "out");
  r.p.mask_head = kHead;
  r.p.mask = r.gpu.virtual_tensor<bool>(
      2 * kHead, "mask", [&c](int64_t i) { return c.mask[i / kHead * c.L * c.S + i % kHead] != 0; },
      false);
  r.forward();
  r.result.out = written(r.p.out, c.L, c.Dv);
  EXPECT_EQ(r.result.report, "");
  const Result want = dense(c);
  expect_close(r.result, want, 3e-6, false);

  DeviceRun b(c);  // the ordinary run's output, for the backward's far tensors
  b.forward();
  const device::View out = b.out.view;
  r.prepare_backward();
  b.c.grad_out.bind();
  r.gpu.readable(static_cast<const float*>(out.data), c.H * c.L * c.Dv, "out");
  r.p.out = out;
  r.p.grad_q = far(c.q, "dq");
  r.p.grad_k = far(c.k, "dk");
  r.p.grad_v = far(c.v, "dv");
  r.p.grad_out = far(c.grad_out, "grad_out");
  device::run_backward<posenc::bias::AlibiBias>(r.launcher, r.p);
  EXPECT_EQ(r.gpu.report(), "");
  EXPECT_LT(error(written(r.p.grad_q, c.L, c.D), want.dq), 3e-6);
  EXPECT_LT(error(written(r.p.grad_k, c.S, c.D), want.dk), 3e-6);
  EXPECT_LT(error(written(r.p.grad_v, c.S, c.Dv), want.dv), 3e-6);
}

TEST(AttentionDevice, KeyNormsAreBoundsAndTight) {
  for (const Dtype dtype : {Dtype::kFloat, Dtype::kDouble, Dtype::kHalf, Dtype::kBFloat16}) {
    Call c;
    c.dtype = dtype;
    c.Hkv = 1;
    c.S = 200;
    c.D = 30;
    c.make();
    c.v.set(0, 0, 70, 3, kInfinity);
    c.k.set(0, 0, 130, 3, kNaN);
    DeviceRun r(c);
    r.keys();
    EXPECT_EQ(r.gpu.report(), "");
    std::vector<double> most(4, 0);
    for (int64_t j = 0; j < c.S; ++j) {
      double squares = 0;
      for (int64_t d = 0; d < c.D; ++d) {
        squares += c.k.get(0, 0, j, d) * c.k.get(0, 0, j, d);
      }
      most[j / 64] = std::max(most[j / 64], std::sqrt(squares));
    }
    EXPECT_GE(r.norm.get(0), most[0]);
    EXPECT_LT(r.norm.get(0), most[0] * (1 + 1e-4));
    EXPECT_EQ(r.norm.get(1), kInfinity);
    EXPECT_EQ(r.norm.get(2), kInfinity);
    EXPECT_GE(r.norm.get(3), most[3]);
    for (int n = 0; n < 4; ++n) {
      double left = 0, right = 0;
      for (int m = 0; m <= n; ++m) {
        left = std::max(left, r.norm.get(m));
      }
      for (int m = n; m < 4; ++m) {
        right = std::max(right, r.norm.get(m));
      }
      EXPECT_EQ(r.left.get(n), left);
      EXPECT_EQ(r.right.get(n), right);
    }
  }
}

TEST(AttentionDevice, SlopesOfEachBatch) {
  Call c;
  c.B = 2;
  c.slopes = {0.5, 0.1, 0.01, 0.3};
  c.make();
  check(c);
}

TEST(AttentionDevice, TheOrderOfThreadsDoesNotMatter) {
  for (const bool tensor_cores : {false, true}) {
    Call c;
    c.tensor_cores = tensor_cores;
    c.dtype = tensor_cores ? Dtype::kHalf : Dtype::kFloat;
    c.S = 150;
    c.causal = true;
    c.make();
    c.mask = random_mask(c, 0.9);
    const Result a = run(c), b = run(c, Layout::kHeads, HostGpu::kBackwards);
    EXPECT_EQ(a.report, "");
    EXPECT_EQ(b.report, "");
    EXPECT_EQ(a.out, b.out);
    EXPECT_EQ(a.dq, b.dq);
    EXPECT_EQ(a.dk, b.dk);
    EXPECT_EQ(a.dv, b.dv);
    EXPECT_EQ(a.dslopes, b.dslopes);
  }
}

template <class S>
void check_fragments() {
  // a (16 × 16) by rows, b (8 × 16) by rows: a·bᵀ; and b2 (16 × 8) by rows: a·b2.
  std::vector<uint16_t> a(256), b(256);
  for (int i = 0; i < 256; ++i) {
    const float x[1] = {static_cast<float>((i * 37) % 61 - 30) / 8};
    const float y[1] = {static_cast<float>((i * 53) % 47 - 20) / 4};
    a[i] = posenc::core::bit_cast<uint16_t>(posenc::core::pack<S>(x));
    b[i] = posenc::core::bit_cast<uint16_t>(posenc::core::pack<S>(y));
  }
  const auto number = [](uint16_t bits) { return device::number_of<S>(bits); };
  std::vector<float> first(256), second(256);
  HostGpu gpu;
  gpu.run({1, 1, 1, 32, 0}, [&](const HostContext& c) {
    const int lane = c.lane();
    uint32_t left[4], right[4], across[4];
    device::load_matrices<false>(c, &a[lane % 16 * 16 + lane / 16 * 8], left);
    device::load_matrices<false>(c, &b[(lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8], right);
    device::load_matrices<true>(c, &b[lane % 16 * 16 + lane / 16 * 8], across);
    for (int half = 0; half < 2; ++half) {
      float x[4] = {1, 1, 1, 1}, y[4] = {0, 0, 0, 0};
      device::multiply_add<S>(c, left, right[2 * half], right[2 * half + 1], x[0], x[1], x[2],
                              x[3]);
      device::multiply_add<S>(c, left, across[2 * half], across[2 * half + 1], y[0], y[1], y[2],
                              y[3]);
      for (int e = 0; e < 4; ++e) {
        const int at = (lane / 4 + e / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + e % 2;
        first[at] = x[e];
        second[at] = y[e];
      }
    }
  });
  EXPECT_EQ(gpu.report(), "");
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float x = 1, y = 0;
      for (int k = 0; k < 16; ++k) {
        x += number(a[i * 16 + k]) * number(b[j * 16 + k]);
        y += number(a[i * 16 + k]) * number(b[k * 16 + j]);
      }
      EXPECT_EQ(first[i * 16 + j], x);
      EXPECT_EQ(second[i * 16 + j], y);
    }
  }
}

TEST(AttentionDevice, FragmentsOfTensorCores) {
  check_fragments<posenc::core::Half>();
  check_fragments<posenc::core::BFloat16>();
}

}  // namespace
