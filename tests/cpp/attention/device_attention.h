#pragma once

// Biased attention by the device kernels' bodies on the host, and the dense formula in float64 to
// compare with. No torch.

#include <gtest/gtest.h>
#include <posenc/attention/attention_passes.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "support/host_gpu.h"

namespace posenc::test::attn {

namespace device = attention::device;
using core::Dtype;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Numbers of a dtype in memory, read and written as double.
class Numbers {
 public:
  Numbers() = default;
  Numbers(Dtype dtype, int64_t n) : dtype_(dtype), bytes_(n * size()) {}

  int64_t size() const { return device::element_bytes(dtype_); }
  int64_t count() const { return static_cast<int64_t>(bytes_.size()) / size(); }
  void* data() { return bytes_.data(); }

  double get(int64_t i) const {
    switch (dtype_) {
      case Dtype::kDouble:
        return read<double>(i);
      case Dtype::kFloat:
        return read<float>(i);
      case Dtype::kHalf:
        return core::to_compute(read<core::Half>(i));
      default:
        return core::to_compute(read<core::BFloat16>(i));
    }
  }
  void set(int64_t i, double v) {
    switch (dtype_) {
      case Dtype::kDouble:
        return write<double>(i, v);
      case Dtype::kFloat:
        return write<float>(i, static_cast<float>(v));
      case Dtype::kHalf:
        return write<core::Half>(i, core::from_compute<core::Half>(static_cast<float>(v)));
      default:
        return write<core::BFloat16>(i, core::from_compute<core::BFloat16>(static_cast<float>(v)));
    }
  }
  void register_in(HostGpu& gpu, const char* name, bool writable) {
    switch (size()) {
      case 8:
        return add<double>(gpu, name, writable);
      case 4:
        return add<float>(gpu, name, writable);
      default:
        return add<uint16_t>(gpu, name, writable);
    }
  }
  void expect_written_once(HostGpu& gpu) {
    switch (size()) {
      case 8:
        return gpu.expect_written_once(reinterpret_cast<double*>(data()), count());
      case 4:
        return gpu.expect_written_once(reinterpret_cast<float*>(data()), count());
      default:
        return gpu.expect_written_once(reinterpret_cast<uint16_t*>(data()), count());
    }
  }

 private:
  template <class T>
  T read(int64_t i) const {
    T v;
    memcpy(&v, bytes_.data() + i * sizeof(T), sizeof(T));
    return v;
  }
  template <class T>
  void write(int64_t i, T v) {
    memcpy(bytes_.data() + i * sizeof(T), &v, sizeof(T));
  }
  template <class T>
  void add(HostGpu& gpu, const char* name, bool writable) {
    writable ? gpu.writable(reinterpret_cast<T*>(data()), count(), name)
             : gpu.readable(reinterpret_cast<const T*>(data()), count(), name);
  }

  Dtype dtype_ = Dtype::kFloat;
  std::vector<char> bytes_;
};

/// How a (B, H, L, D) tensor lies in memory.
enum class Layout {
  kHeads,    ///< contiguous
  kModel,    ///< heads next to each other, as (B, L, H, D)
  kStrided,  ///< channels apart, and nothing aligned
};

struct Tensor4 {
  Numbers numbers;
  int64_t B = 0, H = 0, L = 0, D = 0;
  device::View view{};

  Tensor4() = default;
  Tensor4(Dtype dtype, int64_t b, int64_t h, int64_t l, int64_t d, Layout layout)
      : B(b), H(h), L(l), D(d) {
    const int64_t step = layout == Layout::kStrided ? 2 : 1;
    numbers = Numbers(dtype, std::max<int64_t>(1, b * h * l * d * step));
    view.last = step;
    view.row = layout == Layout::kModel ? h * d : d * step;
    view.head = layout == Layout::kModel ? d : l * d * step;
    view.batch = h * l * d * step;
    const int64_t size = numbers.size();
    int align = step == 1 ? 16 : 0;
    while (align > 0 && (view.row * size % align != 0 || view.head * size % align != 0)) {
      align /= 2;
    }
    view.align = align;
  }

  int64_t at(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return view.offset(b, h, i) + c * view.last;
  }
  double get(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return numbers.get(at(b, h, i, c));
  }
  void set(int64_t b, int64_t h, int64_t i, int64_t c, double v) { numbers.set(at(b, h, i, c), v); }
  device::View bind() {
    view.data = numbers.data();
    return view;
  }
  template <class F>
  void fill(const F& f) {
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t i = 0; i < L; ++i) {
          for (int64_t c = 0; c < D; ++c) {
            set(b, h, i, c, f(b, h, i, c));
          }
        }
      }
    }
  }
};

/// One call of the operator. Everything is made by `make`, then a test changes what it is about.
struct Call {
  Dtype dtype = Dtype::kFloat;
  int64_t B = 1, H = 2, Hkv = 2, L = 70, S = 70;
  int D = 16, Dv = 16;
  bool causal = false;
  double offset = 0, scale = 0.25;
  std::vector<double> slopes;                    ///< (H) or (B, H)
  std::vector<double> q_positions, k_positions;  ///< (B, L), (B, S) or empty
  std::vector<char> mask;                        ///< (B, H, L, S) or empty
  bool with_norms = true;                        ///< a pass over the keys
  std::vector<double> given_norms;
  bool with_dlse = false, with_counts = false;
  bool tensor_cores = false;  ///< as from compute capability 8.0 on
  Tensor4 q, k, v, grad_out;
  Numbers grad_lse;

  Call& make(Layout layout = Layout::kHeads, double size = 1) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal(0, size);
    const auto draw = [&](int64_t, int64_t, int64_t, int64_t) { return normal(random); };
    q = Tensor4(dtype, B, H, L, D, layout);
    k = Tensor4(dtype, B, Hkv, S, D, layout);
    v = Tensor4(dtype, B, Hkv, S, Dv, layout);
    grad_out = Tensor4(dtype, B, H, L, Dv, layout);
    q.fill(draw);
    k.fill(draw);
    v.fill(draw);
    grad_out.fill(draw);
    grad_lse = Numbers(compute(), B * H * L);
    for (int64_t i = 0; i < B * H * L; ++i) {
      grad_lse.set(i, normal(random));
    }
    if (slopes.empty()) {
      for (int64_t h = 0; h < H; ++h) {
        slopes.push_back(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(H)));
      }
    }
    offset = offset == 0 ? static_cast<double>(S - L) : offset;
    return *this;
  }

  Dtype compute() const { return dtype == Dtype::kDouble ? Dtype::kDouble : Dtype::kFloat; }
  double slope(int64_t b, int64_t h) const { return slopes[(b * H + h) % slopes.size()]; }
  double q_pos(int64_t b, int64_t i) const {
    return q_positions.empty() ? static_cast<double>(i) + offset : q_positions[b * L + i];
  }
  double k_pos(int64_t b, int64_t j) const {
    return k_positions.empty() ? static_cast<double>(j) : k_positions[b * S + j];
  }
  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return (!causal || k_pos(b, j) <= q_pos(b, i)) &&
           (mask.empty() || mask[((b * H + h) * L + i) * S + j] != 0);
  }
};

/// What the operator and its backward give, as doubles: (B, H, L, D) in order.
struct Result {
  std::vector<double> out, lse, dq, dk, dv, dslopes;  ///< dslopes (B, H)
  std::vector<double> slope_terms;                    ///< Σ |terms| of dslopes
  int64_t forward_computed = 0, forward_possible = 0, backward_computed = 0, backward_possible = 0;
  std::string report;
};

inline std::vector<double> flat(const Tensor4& t) {
  std::vector<double> x;
  for (int64_t b = 0; b < t.B; ++b) {
    for (int64_t h = 0; h < t.H; ++h) {
      for (int64_t i = 0; i < t.L; ++i) {
        for (int64_t c = 0; c < t.D; ++c) {
          x.push_back(t.get(b, h, i, c));
        }
      }
    }
  }
  return x;
}
inline std::vector<double> flat(const Numbers& t) {
  std::vector<double> x;
  for (int64_t i = 0; i < t.count(); ++i) {
    x.push_back(t.get(i));
  }
  return x;
}

/// The dense formula, pair by pair; a pair that is not allowed is never looked at.
inline Result dense(const Call& c, bool backward = true) {
  Result r;
  const int64_t group = c.H / c.Hkv;
  r.out.assign(c.B * c.H * c.L * c.Dv, 0);
  r.lse.assign(c.B * c.H * c.L, -kInfinity);
  r.dq.assign(c.B * c.H * c.L * c.D, 0);
  r.dk.assign(c.B * c.Hkv * c.S * c.D, 0);
  r.dv.assign(c.B * c.Hkv * c.S * c.Dv, 0);
  r.dslopes.assign(c.B * c.H, 0);
  r.slope_terms.assign(c.B * c.H, 0);
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t g = h / group;
      for (int64_t i = 0; i < c.L; ++i) {
        const int64_t row = (b * c.H + h) * c.L + i;
        std::vector<int64_t> keys;
        std::vector<double> score, dp;
        double most = -kInfinity;
        for (int64_t j = 0; j < c.S; ++j) {
          if (!c.sees(b, h, i, j)) {
            continue;
          }
          double dot = 0;
          for (int64_t d = 0; d < c.D; ++d) {
            dot += c.q.get(b, h, i, d) * c.k.get(b, g, j, d);
          }
          score.push_back(c.scale * dot - c.slope(b, h) * std::abs(c.q_pos(b, i) - c.k_pos(b, j)));
          keys.push_back(j);
          most = device::max_nan(most, score.back());
        }
        if (keys.empty()) {
          continue;
        }
        double sum = 0;
        for (double& x : score) {
          x = std::exp(x - most);
          sum += x;
        }
        r.lse[row] = most + std::log(sum);
        double delta = c.with_dlse ? -c.grad_lse.get(row) : 0;
        for (size_t n = 0; n < keys.size(); ++n) {
          score[n] /= sum;
          double product = 0;
          for (int64_t d = 0; d < c.Dv; ++d) {
            const double value = c.v.get(b, g, keys[n], d);
            r.out[row * c.Dv + d] += score[n] * value;
            product += c.grad_out.get(b, h, i, d) * value;
          }
          dp.push_back(product);
          delta += score[n] * product;
        }
        for (size_t n = 0; backward && n < keys.size(); ++n) {
          const int64_t j = keys[n], key = (b * c.Hkv + g) * c.S + j;
          const double ds = score[n] * (dp[n] - delta);
          for (int64_t d = 0; d < c.D; ++d) {
            r.dq[row * c.D + d] += ds * c.scale * c.k.get(b, g, j, d);
            r.dk[key * c.D + d] += ds * c.scale * c.q.get(b, h, i, d);
          }
          for (int64_t d = 0; d < c.Dv; ++d) {
            r.dv[key * c.Dv + d] += score[n] * c.grad_out.get(b, h, i, d);
          }
          const double term = ds * std::abs(c.q_pos(b, i) - c.k_pos(b, j));
          r.dslopes[b * c.H + h] -= term;
          r.slope_terms[b * c.H + h] += std::abs(term);
        }
      }
    }
  }
  return r;
}

/// Runs passes on the host.
struct HostLauncher {
  HostGpu& gpu;
  HostGpu::Order order;
  bool tensor_cores;

  bool has_tensor_cores() const { return tensor_cores; }

  template <class Pass>
  void run(const typename Pass::Arguments& p) const {
    const core::GridShape grid = Pass::grid(p);
    EXPECT_LE(grid.shared_bytes, (tensor_cores ? 99 : 64) * 1024) << "more than sm_86, sm_75 have";
    EXPECT_EQ(grid.threads, Pass::kBlock);
    gpu.run(
        grid, [&](const HostContext& c) { Pass::body(c, p); }, order);
  }
};

/// Forward and backward as the host side of the operator runs them.
struct DeviceRun {
  Call& c;
  HostGpu gpu;
  HostLauncher launcher;
  Numbers norm, left, right, lse, partial, delta, reach, slope_rows;
  std::vector<double> k_first, k_last;
  std::vector<device::TileStats<double>> stats;
  std::vector<int64_t> counts;
  Tensor4 out, dq, dk, dv;
  device::Params p{};
  Result result;

  explicit DeviceRun(Call& call, Layout out_layout = Layout::kHeads,
                     HostGpu::Order order = HostGpu::kForwards)
      : c(call), launcher{gpu, order, call.tensor_cores} {
    p.dtype = c.dtype;
    p.heads = static_cast<int>(c.H);
    p.kv_heads = static_cast<int>(c.Hkv);
    p.group = static_cast<int>(c.H / c.Hkv);
    p.head_dim = c.D;
    p.v_dim = c.Dv;
    p.pairs = c.B * c.Hkv;
    p.q_len = c.L;
    p.k_len = c.S;
    p.key_blocks = core::ceil_div(c.S, device::kKeys);
    p.q = c.q.bind();
    p.k = c.k.bind();
    p.v = c.v.bind();
    c.q.numbers.register_in(gpu, "q", false);
    c.k.numbers.register_in(gpu, "k", false);
    c.v.numbers.register_in(gpu, "v", false);
    if (!c.mask.empty()) {
      p.mask = reinterpret_cast<const bool*>(c.mask.data());
      p.mask_batch = c.H * c.L * c.S;
      p.mask_head = c.L * c.S;
      p.mask_row = c.S;
      p.mask_last = 1;
      gpu.readable(p.mask, static_cast<int64_t>(c.mask.size()), "mask");
    }
    if (!c.q_positions.empty()) {
      p.q_pos = c.q_positions.data();
      p.q_pos_batch = c.L;
      gpu.readable(p.q_pos, c.B * c.L, "q_positions");
    }
    const int64_t blocks = p.pairs * p.key_blocks;
    if (!c.k_positions.empty()) {
      p.k_pos = c.k_positions.data();
      p.k_pos_batch = c.S;
      gpu.readable(p.k_pos, c.B * c.S, "k_positions");
      k_first.resize(blocks);
      k_last.resize(blocks);
      p.k_first = k_first.data();
      p.k_last = k_last.data();
      gpu.writable(p.k_first, blocks, "k_first");
      gpu.writable(p.k_last, blocks, "k_last");
    }
    p.offset = c.offset;
    p.causal = c.causal;
    p.scale = c.scale;
    const double log_epsilon = std::log(2.0) * (c.dtype == Dtype::kDouble  ? -53
                                                : c.dtype == Dtype::kFloat ? -24
                                                                           : -14);
    p.skip_log = log_epsilon - std::log(4.0 * static_cast<double>(c.S));
    p.stop_log = log_epsilon - std::log(4.0);
    p.drop_share = std::exp(log_epsilon) / 4;
    gpu.readable(c.slopes.data(), static_cast<int64_t>(c.slopes.size()), "slopes");
    p.bias = {c.slopes.data(), static_cast<int64_t>(c.slopes.size()) > c.H ? c.H : 0};
    if (c.with_norms || !c.given_norms.empty()) {
      norm = place(blocks, "norm");
      p.norm = norm.data();
      if (c.q_positions.empty() && c.k_positions.empty()) {
        left = place(blocks, "left_max");
        right = place(blocks, "right_max");
        p.left_max = left.data();
        p.right_max = right.data();
      }
    }
    lse = place(c.B * c.H * c.L, "lse");
    out = Tensor4(c.dtype, c.B, c.H, c.L, c.Dv, out_layout);
    out.numbers.register_in(gpu, "out", true);
    p.out = out.bind();
    p.lse = lse.data();
    if (!c.given_norms.empty()) {
      gpu.readable(c.given_norms.data(), blocks, "given norms");
    }
  }

  /// A scratch of the compute type. Its memory stays where it is when moved.
  Numbers place(int64_t n, const char* name) {
    Numbers x(c.compute(), std::max<int64_t>(n, 1));
    x.register_in(gpu, name, true);
    return x;
  }

  void with_counts(int64_t blocks) {
    if (c.with_counts) {
      counts.assign(2 * blocks, -1);
      p.counts = counts.data();
      gpu.writable(p.counts, 2 * blocks, "counts");
    }
  }
  void add_counts(int64_t& computed, int64_t& possible) {
    for (size_t i = 0; i < counts.size(); i += 2) {
      EXPECT_GE(counts[i], 0);
      computed += counts[i];
      possible += counts[i + 1];
    }
    p.counts = nullptr;
    counts.clear();
  }

  void keys() {
    const double* given = c.given_norms.empty() ? nullptr : c.given_norms.data();
    if (c.dtype == Dtype::kDouble) {
      device::run_keys<double>(launcher, p, given);
    } else {
      device::run_keys<float>(launcher, p, given);
    }
  }

  void forward() {
    keys();
    device::plan_forward(p);
    if (p.parts > 1) {
      partial = place(device::partial_size(p), "partial");
      p.partial = partial.data();
    }
    with_counts(p.pairs * p.tiling.count * p.parts);
    device::run_forward<bias::AlibiBias>(launcher, p);
    if (out.view.last == 1 && p.out.data == out.numbers.data()) {
      out.numbers.expect_written_once(gpu);
    }
    lse.expect_written_once(gpu);
    add_counts(result.forward_computed, result.forward_possible);
    result.out = flat(out);
    result.lse = flat(lse);
    result.report += gpu.report();
  }

  void prepare_backward(Layout layout = Layout::kHeads) {
    dq = Tensor4(c.dtype, c.B, c.H, c.L, c.D, layout);
    dk = Tensor4(c.dtype, c.B, c.Hkv, c.S, c.D, layout);
    dv = Tensor4(c.dtype, c.B, c.Hkv, c.S, c.Dv, layout);
    dq.numbers.register_in(gpu, "dq", true);
    dk.numbers.register_in(gpu, "dk", true);
    dv.numbers.register_in(gpu, "dv", true);
    c.grad_out.numbers.register_in(gpu, "grad_out", false);
    p.grad_q = dq.bind();
    p.grad_k = dk.bind();
    p.grad_v = dv.bind();
    p.grad_out = c.grad_out.bind();
    if (c.with_dlse) {
      c.grad_lse.register_in(gpu, "grad_lse", false);
      p.grad_lse = c.grad_lse.data();
    }
    const int64_t rows = c.B * c.H * c.L;
    delta = place(rows, "delta");
    reach = place(rows, "reach");
    slope_rows = place(rows, "slope_rows");
    p.delta = delta.data();
    p.reach = reach.data();
    p.slope_rows = slope_rows.data();
    device::plan_backward(p);
    stats.resize(p.pairs * p.tiling.count);
    gpu.writable(reinterpret_cast<float*>(stats.data()),
                 static_cast<int64_t>(stats.size() * sizeof(stats[0]) / sizeof(float)), "stats");
    p.tile_stats = stats.data();
  }

  void backward(Layout layout = Layout::kHeads) {
    prepare_backward(layout);
    const int64_t rows = c.B * c.H * c.L;
    with_counts(p.pairs * p.tiling.count);
    device::run_backward<bias::AlibiBias>(launcher, p);
    for (Tensor4* t : {&dq, &dk, &dv}) {
      if (t->view.last == 1) {
        t->numbers.expect_written_once(gpu);
      }
    }
    slope_rows.expect_written_once(gpu);
    add_counts(result.backward_computed, result.backward_possible);
    result.dq = flat(dq);
    result.dk = flat(dk);
    result.dv = flat(dv);
    result.dslopes.assign(c.B * c.H, 0);
    for (int64_t i = 0; i < rows; ++i) {
      result.dslopes[i / c.L] += slope_rows.get(i);
    }
    result.report += gpu.report();
  }
};

inline Result run(Call& c, Layout out_layout = Layout::kHeads,
                  HostGpu::Order order = HostGpu::kForwards, bool backward = true) {
  DeviceRun r(c, out_layout, order);
  r.forward();
  if (backward) {
    r.backward(out_layout);
  }
  return r.result;
}

/// Largest |a − b| relative to the size of b; infinite where the two are not finite, or not of one
/// sign of infinity, in the same places.
inline double error(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0, size = 1;
  if (a.size() != b.size()) {
    return kInfinity;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i]) || std::isinf(a[i]) || std::isinf(b[i])) {
      if (std::isnan(a[i]) != std::isnan(b[i]) || (!std::isnan(a[i]) && a[i] != b[i])) {
        return kInfinity;
      }
      continue;
    }
    most = std::max(most, std::abs(a[i] - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  return most / size;
}

inline double tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kDouble:
      return 1e-13;
    case Dtype::kFloat:
      return 3e-6;
    case Dtype::kHalf:
      return 2e-3;
    default:
      return 1.6e-2;
  }
}

inline void expect_close(const Result& a, const Result& b, double most, bool backward = true) {
  EXPECT_EQ(a.report, "");
  EXPECT_LT(error(a.out, b.out), most) << "out";
  EXPECT_LT(error(a.lse, b.lse), most) << "lse";
  if (backward) {
    EXPECT_LT(error(a.dq, b.dq), most) << "dq";
    EXPECT_LT(error(a.dk, b.dk), most) << "dk";
    EXPECT_LT(error(a.dv, b.dv), most) << "dv";
    for (size_t i = 0; i < b.dslopes.size(); ++i) {  // terms of both signs, Σ dS = 0
      EXPECT_TRUE(std::isnan(b.dslopes[i])
                      ? std::isnan(a.dslopes[i])
                      : std::abs(a.dslopes[i] - b.dslopes[i]) <= most * (1 + b.slope_terms[i]))
          << "dslopes " << a.dslopes[i] << " " << b.dslopes[i];
    }
  }
}

inline void check(Call& c, Layout layout = Layout::kHeads) {
  expect_close(run(c, layout), dense(c), tolerance(c.dtype));
}

}  // namespace posenc::test::attn
