// The CUDA kernels of what is added to embeddings, run on the host over their own grids.

#include <posenc/absolute/embedding.h>
#include <posenc/absolute/learned.h>
#include <posenc/absolute/rows_body.h>
#include <posenc/absolute/rows_device_args.h>
#include <posenc/absolute/sinusoidal.h>

#include <limits>

#include "absolute/reference.h"
#include "support/gpu_tensors.h"

namespace posenc::test {
namespace {

using absolute::RowsDeviceParams;
using core::kFullPack;
using posenc::testing::OptionalTensor;
using posenc::testing::vaswani;

template <template <class> class Source, template <class> class Addend>
void run_rows(HostGpu& gpu, const RowsDeviceParams& p, at::ScalarType dtype,
              std::vector<int64_t> blocks = {}) {
  with_number(dtype, [&](auto number) {
    using T = decltype(number);
    gpu.run(absolute::rows_grid<T>(p), std::move(blocks), [&](const HostContext& c) {
      p.packed ? absolute::add_rows_body<T, kFullPack<T>, Source, Addend>(c, p)
               : absolute::add_rows_body<T, 1, Source, Addend>(c, p);
    });
  });
}

/// Registers an optional tensor.
void readable_if(HostGpu& gpu, const at::Tensor& t, const char* name) {
  if (t.defined()) {
    readable(gpu, t, name);
  }
}

void expect_proper(HostGpu& gpu, const at::Tensor& y, bool packed) {
  written_once(gpu, y);
  EXPECT_EQ(gpu.report(), "");
  EXPECT_EQ(gpu.wide_accesses() > 0, packed);
}

at::Tensor encode(const at::Tensor& ids, const std::vector<double>& f, int64_t d, bool interleaved,
                  at::ScalarType dtype) {
  const at::Tensor flat = absolute::readable_ids(ids).reshape({-1});
  const at::Tensor y = at::full({flat.numel(), d}, 7., dtype);
  const RowsDeviceParams params = absolute::encoding_device_params(absolute::id_view(flat, 0), y);
  HostGpu gpu;
  readable(gpu, flat, "position_ids");
  writable(gpu, y, "y");
  bool packed = false;
  absolute::for_frequency_slices(
      params, f, interleaved, y.element_size(), [&](const RowsDeviceParams& p) {
        packed = packed || p.packed;
        run_rows<absolute::NoSource, absolute::SinusoidalAddend>(gpu, p, dtype);
      });
  expect_proper(gpu, y, packed);
  return y;
}

double near(at::ScalarType dtype, double size = 1.) {
  return dtype == at::kDouble  ? 4e-16 * size
         : dtype == at::kFloat ? 2e-7 * size
                               : 1.01 * rounding(dtype) * size;
}

TEST(RowsDevice, EncodingOfEveryWidthDtypeAndKindOfPosition) {
  const at::Tensor whole = torch::tensor({0, 1, 2, 63, 64, 65, 1000, -3}, at::kLong);
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t n : {0, 1, 3, 4, 32, 300, 512}) {
      for (const int64_t d : {2 * n - 1, 2 * n, 2 * n + 1}) {
        if (d < 1) {
          continue;
        }
        std::vector<double> f;
        for (int64_t i = 0; i < n; ++i) {
          f.push_back(std::pow(10000., -static_cast<double>(i) / static_cast<double>(n)));
        }
        const at::Tensor ids = n > 32 ? whole.slice(0, 4) : whole;
        for (const at::Tensor& positions :
             {ids, ids.to(at::kInt), ids.to(at::kShort), ids.to(at::kDouble) / 7,
              ids.to(at::kFloat) / 7, ids.repeat_interleave(2).slice(0, 0, 2 * ids.numel(), 2)}) {
          for (const bool interleaved : {true, false}) {
            const at::Tensor want =
                sinusoidal_encoding(positions, f, d, interleaved, at::ScalarType::Double);
            expect_equal_or_near(encode(positions, f, d, interleaved, dtype), want, near(dtype));
          }
        }
      }
    }
  }
}

TEST(RowsDevice, AnglesAreExactUpToTwoToThe24AndOfAnyFrequency) {
  at::manual_seed(0);
  const at::Tensor ids = at::randint(1 << 23, (1 << 24) + 1, {60}, at::kLong);
  const std::vector<double> f = {1., 0.01, 1e-4, 0.7, -0.3, 40., -900.5, 3e4};
  for (const at::Tensor& positions :
       {ids, -ids, ids.to(at::kDouble) + at::rand({60}, at::kDouble)}) {
    const at::Tensor want = sinusoidal_encoding(positions, f, 16, true, at::ScalarType::Double);
    expect_equal_or_near(encode(positions, f, 16, true, at::kFloat), want, 3e-7);
    expect_equal_or_near(encode(positions, f, 16, true, at::kDouble), want, 1e-8);
  }
}

TEST(RowsDevice, WhatIsNotFiniteGivesNan) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor ids = torch::tensor({0., inf, -inf, std::nan(""), 1e300}, at::kDouble);
  const at::Tensor y = encode(ids, {1., 0.5}, 4, true, at::kFloat);
  EXPECT_EQ(y[0][1].item<float>(), 1.f);
  EXPECT_TRUE(y.slice(0, 1).isnan().all().item<bool>());
  EXPECT_TRUE(encode(at::arange(3), {inf}, 2, true, at::kFloat).isnan().all().item<bool>());
  const at::Tensor one_bad = encode(at::arange(3), {1., 0x1p33}, 4, true, at::kFloat);
  EXPECT_FALSE(one_bad.narrow(1, 0, 2).isnan().any().item<bool>());
  EXPECT_TRUE(one_bad.narrow(1, 2, 2).isnan().all().item<bool>());
}

struct Add {
  at::Tensor x;
  int64_t seq_dim;
  OptionalTensor ids;
  int64_t offset = 0;
};

/// Tensors of every layout, time of 5 and batch of 2 where there is one, with the positions that
/// they take.
std::vector<Add> additions(at::ScalarType dtype, int64_t d, int64_t largest) {
  const auto make = [&](const std::vector<int64_t>& shape) {
    return at::randn(shape, at::kDouble).to(dtype);
  };
  const std::vector<std::pair<at::Tensor, int64_t>> inputs = {
      {make({2, 5, d}), 1},
      {make({5, 2, d}), 0},
      {make({5, d}), 0},
      {make({2, 3, 5, d}), 2},
      {make({2, 5, 3, d}).transpose(1, 2), 2},
      {make({2, d, 5}).transpose(1, 2), 1},
      {make({2, 5, 2 * d}).slice(-1, 0, 2 * d, 2), 1},
      {make({2, 5, d + 5}).narrow(-1, 3, d), 1},
      {make({1, 5, d}).expand({2, 5, d}), 1},
      {make({2, 2, 5, 3, 2, d}).permute({0, 4, 2, 1, 3, 5}), 2}};
  std::vector<Add> result;
  for (const auto& [x, seq_dim] : inputs) {
    result.push_back({x, seq_dim, std::nullopt, largest - 5});
    result.push_back({x, seq_dim, at::randint(0, largest, {5}, at::kLong)});
    result.push_back({x, seq_dim, at::randint(0, largest - 2, {1, 5}, at::kInt), 2});
    if (x.dim() > 2) {
      result.push_back({x, seq_dim, at::randint(0, largest, {2, 5}, at::kLong)});
      result.push_back({x, seq_dim, at::randint(0, largest, {5, 2}, at::kInt).t()});
    }
  }
  return result;
}

TEST(RowsDevice, AddSinusoidalInEveryLayout) {
  at::manual_seed(1);
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t d : {7, 16, 600}) {
      const auto f = vaswani(d);
      for (const Add& a : additions(dtype, d, 5000)) {
        const bool interleaved = a.x.dim() % 2 == 1;
        const at::Tensor y = at::empty_like(a.x);
        const at::Tensor ids = a.ids.has_value() ? absolute::readable_ids(*a.ids) : at::Tensor();
        RowsDeviceParams params;
        ASSERT_TRUE(absolute::add_device_params(a.x, a.seq_dim, absolute::id_view(ids, a.offset), y,
                                                &params));
        params.scale = 2.5;
        absolute::choose_packs(&params, a.x.element_size());
        HostGpu gpu;
        readable(gpu, a.x, "x");
        writable(gpu, y, "y");
        readable_if(gpu, ids, "position_ids");
        bool packed = false;
        absolute::for_frequency_slices(
            params, f, interleaved, y.element_size(), [&](const RowsDeviceParams& p) {
              packed = packed || p.packed;
              run_rows<absolute::TensorSource, absolute::SinusoidalAddend>(gpu, p, dtype);
            });
        expect_proper(gpu, y, packed);
        expect_equal_or_near(
            y, add_sinusoidal(a.x.to(at::kDouble), f, a.ids, a.offset, a.seq_dim, interleaved, 2.5),
            near(dtype, 16.));
      }
    }
  }
}

TEST(RowsDevice, AddPositionsInEveryLayout) {
  at::manual_seed(2);
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t d : {7, 16, 600}) {
      const at::Tensor wide = at::randn({9, d + 8}, at::kDouble).to(dtype);
      for (const at::Tensor& weight :
           {wide.narrow(1, 0, d).contiguous(), wide.narrow(1, 8, d), wide.narrow(1, 1, d)}) {
        for (const Add& a : additions(dtype, d, 9)) {
          const at::Tensor y = at::empty_like(a.x);
          const at::Tensor ids = a.ids.has_value() ? absolute::readable_ids(*a.ids) : at::Tensor();
          RowsDeviceParams p;
          ASSERT_TRUE(
              absolute::add_device_params(a.x, a.seq_dim, absolute::id_view(ids, a.offset), y, &p));
          p.addend = absolute::table_view(weight);
          absolute::choose_packs(&p, a.x.element_size());
          HostGpu gpu;
          readable(gpu, a.x, "x");
          readable(gpu, weight, "weight");
          writable(gpu, y, "y");
          readable_if(gpu, ids, "position_ids");
          run_rows<absolute::TensorSource, absolute::TableAddend>(gpu, p, dtype);
          expect_proper(gpu, y, p.packed);
          expect_equal_or_near(y,
                               add_positions(a.x.to(at::kDouble), weight.to(at::kDouble), a.ids,
                                             a.offset, a.seq_dim),
                               near(dtype, 8.));
        }
      }
    }
  }
}

TEST(RowsDevice, EmbedTokens) {
  at::manual_seed(3);
  for (const auto dtype : kGpuDtypes) {
    for (const int64_t d : {1, 7, 16, 600}) {
      const at::Tensor weight = at::randn({11, d}, at::kDouble).to(dtype);
      const auto f = vaswani(d);
      for (const at::Tensor& tokens :
           {at::randint(0, 11, {3, 5}, at::kLong), at::randint(0, 11, {3, 5}, at::kInt),
            at::randint(0, 11, {5}, at::kLong), at::randint(0, 11, {5, 3}, at::kLong).t()}) {
        std::vector<at::Tensor> forms = {at::Tensor(), at::arange(-2, 3, at::kLong),
                                         at::randn({1, 5}, at::kDouble)};
        if (tokens.dim() == 2) {
          forms.push_back(at::randint(-9, 99, {3, 5}, at::kLong));
        }
        for (const at::Tensor& ids : forms) {
          std::vector<int64_t> shape = tokens.sizes().vec();
          shape.push_back(d);
          const at::Tensor y = at::full(shape, 7., dtype);
          const RowsDeviceParams params =
              absolute::embed_device_params(tokens, weight, absolute::id_view(ids, 2), 2.5, y);
          HostGpu gpu;
          readable(gpu, tokens, "tokens");
          readable(gpu, weight, "weight");
          writable(gpu, y, "y");
          readable_if(gpu, ids, "position_ids");
          bool packed = false;
          absolute::for_frequency_slices(
              params, f, /*interleaved=*/d != 16, y.element_size(), [&](const RowsDeviceParams& p) {
                packed = packed || p.packed;
                run_rows<absolute::TokenSource, absolute::SinusoidalAddend>(gpu, p, dtype);
              });
          expect_proper(gpu, y, packed);
          expect_equal_or_near(
              y,
              embed_tokens(tokens, weight.to(at::kDouble), f,
                           ids.defined() ? OptionalTensor(ids) : std::nullopt, 2, d != 16, 2.5),
              near(dtype, 16.));
        }
      }
    }
  }
}

TEST(RowsDevice, ChunksEqualTheWholeBitForBit) {
  const int64_t length = 130, d = 40;
  const auto f = vaswani(d);
  const at::Tensor whole = encode(at::arange(length), f, d, true, at::kFloat);
  const at::Tensor chunks =
      at::cat({encode(at::arange(77), f, d, true, at::kFloat),
               encode(at::arange(77, length, at::kInt), f, d, true, at::kFloat)});
  EXPECT_TRUE(at::equal(whole, chunks));
  EXPECT_TRUE(at::equal(whole, encode(at::arange(length, at::kDouble), f, d, true, at::kFloat)));
}

TEST(RowsDevice, OutsideTheTableStopsTheKernelWithTheOperatorsName) {
  const at::Tensor x = at::zeros({1, 2, 4}), y = at::empty_like(x), weight = at::zeros({8, 4});
  for (const int64_t outside : {int64_t{8}, int64_t{-1}, int64_t{1} << 40}) {
    const at::Tensor ids = torch::tensor({int64_t{0}, outside}, at::kLong);
    RowsDeviceParams p;
    ASSERT_TRUE(absolute::add_device_params(x, 1, absolute::id_view(ids, 0), y, &p));
    p.addend = absolute::table_view(weight);
    HostGpu gpu;
    readable(gpu, x, "x");
    readable(gpu, weight, "weight");
    readable(gpu, ids, "ids");
    writable(gpu, y, "y");
    run_rows<absolute::TensorSource, absolute::TableAddend>(gpu, p, at::kFloat);
    EXPECT_NE(gpu.report().find("add_positions: expected positions"), std::string::npos);

    const absolute::RowsDeviceParams embed =
        absolute::embed_device_params(ids, weight, absolute::id_view({}, 0), 1., y.view({2, 4}));
    absolute::for_frequency_slices(embed, vaswani(4), true, 4, [&](const RowsDeviceParams& slice) {
      run_rows<absolute::TokenSource, absolute::SinusoidalAddend>(gpu, slice, at::kFloat);
    });
    EXPECT_NE(gpu.report().find("embed_tokens: expected input_ids"), std::string::npos);

    const absolute::CheckIdsParams check{absolute::id_view(ids, 0), 1, 2, 8};
    const auto body = [&](const HostContext& c) { absolute::check_ids_body(c, check); };
    gpu.run(absolute::check_ids_grid(check), body);
    EXPECT_NE(gpu.report().find("_add_positions_backward: expected positions"), std::string::npos);
  }
  const at::Tensor ids = at::randint(0, 8, {300, 7}, at::kInt);
  for (const at::Tensor& good : {ids, ids.t(), ids[0]}) {
    const absolute::CheckIdsParams check{absolute::id_view(good, 3),
                                         good.dim() == 2 ? good.size(0) : 1, good.size(-1), 11};
    HostGpu gpu;
    readable(gpu, good, "ids");
    const auto body = [&](const HostContext& c) { absolute::check_ids_body(c, check); };
    gpu.run(absolute::check_ids_grid(check), body);
    EXPECT_EQ(gpu.report(), "");
    EXPECT_EQ(gpu.accesses(), good.numel());
  }
}

TEST(RowsDevice, OffsetsPastTwoToThe31) {
  // (2, 2^20, 4096) of bfloat16 without memory: 2^33 elements; the last block.
  const int64_t batch = 2, length = 1 << 20, d = 4096, count = batch * length * d;
  HostGpu gpu;
  const auto value = [](int64_t i) {
    return core::from_compute<core::BFloat16>(static_cast<float>(i % 61));
  };
  RowsDeviceParams params;
  params.x = gpu.virtual_tensor<core::BFloat16>(count, "x", value, false);
  auto* y = gpu.virtual_tensor<core::BFloat16>(count, "y", value, true);
  params.y = y;
  params.walk.batch = batch;
  params.walk.length = length;
  params.walk.x.batch = params.walk.y.batch = length * d;
  params.walk.x.time = params.walk.y.time = d;
  params.channels = d;
  absolute::choose_packs(&params, 2);
  EXPECT_TRUE(params.packed);
  const auto f = vaswani(d);
  int slices = 0;
  absolute::for_frequency_slices(params, f, true, 2, [&](const RowsDeviceParams& p) {
    const core::GridShape grid = absolute::rows_grid<core::BFloat16>(p);
    run_rows<absolute::TensorSource, absolute::SinusoidalAddend>(gpu, p, at::kBFloat16,
                                                                 {grid.x * grid.y - 1});
    ++slices;
  });
  EXPECT_EQ(slices, 8);
  EXPECT_EQ(gpu.report(), "");
  const auto written = gpu.written(static_cast<const core::BFloat16*>(y));
  EXPECT_EQ(written.begin()->first % d, 0);
  EXPECT_EQ(written.rbegin()->first, count - 1);
  for (const auto& [index, got] : written) {
    const int64_t l = index / d % length, c = index % d;
    const double want = static_cast<double>(index % 61) +
                        posenc::testing::encoding_at(static_cast<double>(l), f, c, true);
    ASSERT_NEAR(core::to_compute(got), want, 0.3) << index;
  }
}

TEST(RowsDevice, MoreAxesThanALaunchDescribesAreToldApart) {
  std::vector<int64_t> shape(12, 2), order = {0, 10, 8, 6, 4, 2, 1, 3, 5, 7, 9, 11};
  const at::Tensor x = at::zeros(shape).permute(order);
  RowsDeviceParams p;
  EXPECT_FALSE(absolute::add_device_params(x, 3, {}, at::empty_like(x), &p));
  EXPECT_TRUE(absolute::add_device_params(x.contiguous(), 3, {}, at::empty(shape), &p));
}

}  // namespace
}  // namespace posenc::test
