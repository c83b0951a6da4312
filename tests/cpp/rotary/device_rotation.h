#pragma once

// Tensors and a slow rotation for the tests of the rotation kernel: everything from the formula, in
// long double, without torch.

#include <posenc/rotary/rotary_device.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/host_gpu.h"

namespace posenc::test {

/// Strides in elements of (batch, seq, head, channel), and the elements that they span.
struct TensorLayout {
  int64_t batch, seq, head, last, span;
};

/// (B, L, H, D), contiguous, or with `gap` unused elements behind each row of channels.
inline TensorLayout by_seq(int64_t b, int64_t l, int64_t h, int64_t d, int64_t gap = 0) {
  const int64_t w = d + gap;
  return {l * h * w, h * w, w, 1, b * l * h * w};
}
/// (B, H, L, D).
inline TensorLayout by_head(int64_t b, int64_t l, int64_t h, int64_t d) {
  return {h * l * d, d, l * d, 1, b * l * h * d};
}
/// Channels that do not lie side by side.
inline TensorLayout spread(int64_t b, int64_t l, int64_t h, int64_t d) {
  return {l * h * d * 2, h * d * 2, d * 2, 2, b * l * h * d * 2};
}

template <class T>
struct RotationTensor {
  int64_t heads, head_dim;
  TensorLayout xs, ys;
  bool copied = false;
  std::vector<T> x_store, y_store;
  T *x = nullptr, *y = nullptr;

  int64_t at(const TensorLayout& s, int64_t b, int64_t l, int64_t h, int64_t d) const {
    return b * s.batch + l * s.seq + h * s.head + d * s.last;
  }
};

template <class T>
T* aligned(std::vector<T>& store, int64_t n, int64_t shift = 0) {
  store.assign(n + 32, T{});
  const auto address = reinterpret_cast<uint64_t>(store.data());
  return store.data() + (16 - address % 16) % 16 / sizeof(T) + shift;
}

/// One call of the rotation and what it must give.
template <class T>
struct Rotation {
  using C = core::ComputeType<T>;
  int64_t batch = 2, seq = 5;
  int64_t n = 8, start = 0;
  bool interleaved_in = false, interleaved_out = false, inverse = false, in_place = false;
  double factor = 1.0;
  int64_t x_shift = 0;  ///< elements between a 16-byte boundary and the first of x
  std::vector<RotationTensor<T>> tensors;
  std::vector<double> inv_freq;  ///< (1, n) or sets of them: see per_batch, per_head
  bool on_device = false, per_batch = false, per_head = false;
  std::vector<int> axes;
  /// Position of (axis, b, l); integers unless `real`.
  std::function<double(int, int64_t, int64_t)> position = [](int, int64_t, int64_t l) {
    return static_cast<double>(l);
  };
  bool by_ids = false, real = false, narrow_ids = false;
  int64_t offset = 0;
  HostGpu::Order order = HostGpu::kForwards;
  /// Tables (n_rows, n or 2n), or with `gathered` rows (batch, seq, …), instead of frequencies.
  bool tables = false, wide_tables = false, gathered = false, half_tables = false;
  int64_t n_rows = 0;

  int pack = 0;  ///< set by run
  int64_t wide = 0;
  double worst = 0;  ///< largest error in units of the dtype's rounding of a number of size 1

  void add(int64_t heads, int64_t head_dim, TensorLayout xs, TensorLayout ys, bool copied = false) {
    tensors.push_back({heads, head_dim, xs, ys, copied, {}, {}, nullptr, nullptr});
  }

  static double ulp() {
    return sizeof(T) == 8                  ? 0x1p-52
           : sizeof(T) == 4                ? 0x1p-23
           : std::is_same_v<T, core::Half> ? 0x1p-10
                                           : 0x1p-7;
  }

  double frequency(int64_t b, int64_t h, int64_t i) const {
    return inv_freq[(per_batch ? b * n : per_head ? h * n : 0) + i];
  }

  /// Runs the launches that the host would make, and reports what was wrong.
  std::string run() {
    HostGpu gpu;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    rotary::RotaryDeviceParams p{};
    p.n_pairs = static_cast<int32_t>(n);
    p.start = static_cast<int32_t>(start);
    p.batch = batch;
    p.seq = seq;
    p.interleaved_in = interleaved_in;
    p.interleaved_out = interleaved_out;
    p.inverse = inverse;
    p.attention_factor = factor;
    std::vector<std::vector<T>> before;
    for (RotationTensor<T>& t : tensors) {
      t.x = aligned(t.x_store, t.xs.span, x_shift);
      for (int64_t i = 0; i < t.xs.span; ++i) {
        t.x[i] = core::from_compute<T>(static_cast<C>(normal(random)));
      }
      t.y = in_place ? t.x : aligned(t.y_store, t.ys.span);
      before.emplace_back(t.x, t.x + t.xs.span);
      if (!in_place) {
        gpu.readable(t.x, t.xs.span, "x");
      }
      gpu.writable(t.y, t.ys.span, "y");
      rotary::RotaryDevicePart& part = p.parts[p.n_parts++];
      part = {t.x,
              t.y,
              t.xs.batch,
              t.xs.seq,
              t.xs.head,
              t.xs.last,
              t.ys.batch,
              t.ys.seq,
              t.ys.head,
              t.ys.last,
              static_cast<int32_t>(t.heads),
              static_cast<int32_t>(t.head_dim),
              0,
              t.copied};
    }
    std::vector<double> ids_real;
    std::vector<float> ids_float;
    std::vector<int64_t> ids_long;
    std::vector<int32_t> ids_int;
    set_positions(p, gpu, ids_real, ids_float, ids_long, ids_int);
    if (on_device) {
      gpu.readable(inv_freq.data(), inv_freq.size(), "inv_freq");
      p.inv_freq = inv_freq.data();
      p.freq_batch = per_batch ? n : 0;
      p.freq_head = per_head ? n : 0;
    }
    if (tables) {
      set_tables(p, gpu, random);
    }
    pack = rotary::choose_pack(p, sizeof(T));
    for (int64_t first = 0; first < std::max<int64_t>(n, 1);) {
      p.first_pair = static_cast<int32_t>(first);
      p.n_here = static_cast<int32_t>(
          tables ? n : std::min<int64_t>(n - first, rotary::RotaryDeviceParams::kMostFrequencies));
      p.copies_rest = first == 0;
      for (int i = 0; i < p.n_here && !tables; ++i) {
        const int axis = axes.empty() ? 0 : axes[first + i];
        if (on_device) {
          p.axis[i] = static_cast<uint8_t>(axis);
        } else {
          rotary::set_frequency(p, i, inv_freq[first + i], axis, sizeof(T) == 8);
        }
      }
      rotary::plan_rotation(p, pack);
      launch(gpu, p);
      first += std::max(p.n_here, 1);
    }
    wide = gpu.wide_accesses();
    check(gpu, before);
    return gpu.report();
  }

 private:
  std::vector<float> cos_table, sin_table;
  std::vector<core::BFloat16> cos_half, sin_half;

  int64_t width() const { return wide_tables ? 2 * n : n; }

  void set_tables(rotary::RotaryDeviceParams& p, HostGpu& gpu, std::mt19937& random) {
    std::normal_distribution<float> normal;
    const int64_t size = (gathered ? batch * seq : n_rows) * width();
    const auto fill = [&](std::vector<float>& table, std::vector<core::BFloat16>& half,
                          const void*& data, core::Dtype& dtype, int64_t& batch_stride,
                          int64_t& seq_stride, int64_t& last) {
      for (int64_t i = 0; i < size; ++i) {
        half.push_back(core::from_compute<core::BFloat16>(normal(random)));
        table.push_back(core::to_compute(half.back()));
      }
      half_tables ? gpu.readable(half.data(), size, "table")
                  : gpu.readable(table.data(), size, "table");
      data = half_tables ? static_cast<const void*>(half.data()) : table.data();
      dtype = half_tables ? core::Dtype::kBFloat16 : core::Dtype::kFloat;
      batch_stride = gathered ? seq * width() : 0;
      seq_stride = width();
      last = 1;
    };
    rotary::RotaryDeviceTables& t = p.tables;
    fill(cos_table, cos_half, t.cos, t.cos_dtype, t.cos_batch, t.cos_seq, t.cos_last);
    fill(sin_table, sin_half, t.sin, t.sin_dtype, t.sin_batch, t.sin_seq, t.sin_last);
    t.n_rows = gathered ? seq : n_rows;
    t.wide = wide_tables;
    t.wide_interleaved = interleaved_in;
  }

  /// cos of the first channel, sin of the first, cos of the second, sin of the second.
  std::array<long double, 4> coefficients(int64_t b, int64_t l, int64_t h, int64_t k) const {
    if (tables) {
      const int64_t row = by_ids ? static_cast<int64_t>(position(0, b, l)) : l;
      const int64_t begin = ((gathered ? b * seq : 0) + row) * width();
      const int64_t lo = begin + (wide_tables && interleaved_in ? 2 * k : k);
      const int64_t hi = !wide_tables ? lo : interleaved_in ? lo + 1 : lo + n;
      return inverse ? std::array<long double, 4>{cos_table[lo], -sin_table[hi], cos_table[hi],
                                                  -sin_table[lo]}
                     : std::array<long double, 4>{cos_table[lo], sin_table[lo], cos_table[hi],
                                                  sin_table[hi]};
    }
    const long double p = position(axes.empty() ? 0 : axes[k], b, l);
    const long double f = frequency(b, h, k) * (inverse ? -1 : 1);
    // Even in long double the product of a large position has to have its rounding put back.
    const long double angle = p * f, lost = std::fma(p, f, -angle);
    const long double c = (std::cos(angle) - std::sin(angle) * lost) * factor;
    const long double s = (std::sin(angle) + std::cos(angle) * lost) * factor;
    return {c, s, c, s};
  }

  void set_positions(rotary::RotaryDeviceParams& p, HostGpu& gpu, std::vector<double>& reals,
                     std::vector<float>& floats, std::vector<int64_t>& longs,
                     std::vector<int32_t>& ints) {
    p.positions.offset = offset;
    if (!by_ids) {
      return;
    }
    const int n_axes = axes.empty() ? 1 : *std::max_element(axes.begin(), axes.end()) + 1;
    for (int a = 0; a < n_axes; ++a) {
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t l = 0; l < seq; ++l) {
          const double id = position(a, b, l) - static_cast<double>(offset);
          reals.push_back(id);
          floats.push_back(static_cast<float>(id));
          longs.push_back(static_cast<int64_t>(id));
          ints.push_back(static_cast<int32_t>(id));
        }
      }
    }
    const auto use = [&](const auto& ids, core::IdType type) {
      gpu.readable(ids.data(), ids.size(), "position_ids");
      p.positions.data = ids.data();
      p.positions.type = type;
    };
    if (real) {
      narrow_ids ? use(floats, core::IdType::kFloat) : use(reals, core::IdType::kDouble);
    } else {
      narrow_ids ? use(ints, core::IdType::kInt32) : use(longs, core::IdType::kInt64);
    }
    p.positions.seq_stride = 1;
    p.positions.batch_stride = seq;
    p.axis_stride = axes.empty() ? 0 : batch * seq;
  }

  void launch(HostGpu& gpu, const rotary::RotaryDeviceParams& p) {
    const auto with = [&](auto packs) {
      constexpr int kPack = decltype(packs)::value;
      gpu.run(
          rotary::rotary_grid(p),
          [&](const HostContext& c) {
            tables ? rotary::rotate_body<T, kPack, true>(c, p)
                   : rotary::rotate_body<T, kPack, false>(c, p);
          },
          order);
    };
    if (pack == core::kFullPack<T>) {
      with(std::integral_constant<int, core::kFullPack<T>>());
    } else if (sizeof(T) == 2 && pack == 4) {
      with(std::integral_constant < int, sizeof(T) == 2 ? 4 : 1 > ());
    } else {
      with(std::integral_constant<int, 1>());
    }
  }

  void check(HostGpu& gpu, const std::vector<std::vector<T>>& before) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const RotationTensor<T>& t = tensors[i];
      std::vector<int> times(t.ys.span, 0);
      const auto in = [&](int64_t b, int64_t l, int64_t h, int64_t d) {
        return before[i][t.at(t.xs, b, l, h, d)];
      };
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t l = 0; l < seq; ++l) {
          for (int64_t h = 0; h < t.heads; ++h) {
            for (int64_t d = 0; d < t.head_dim; ++d) {
              const bool rotated = !t.copied && d >= start && d < start + 2 * n;
              times[t.at(t.ys, b, l, h, d)] = rotated || !in_place;
              if (!rotated) {
                const T got = t.y[t.at(t.ys, b, l, h, d)], want = in(b, l, h, d);
                worst = std::memcmp(&got, &want, sizeof(T)) == 0 ? worst : INFINITY;
              }
            }
            for (int64_t k = 0; !t.copied && k < n; ++k) {
              check_pair(t, b, l, h, k, in);
            }
          }
        }
      }
      gpu.expect_written<T>(t.y, t.ys.span, [&](int64_t e) { return times[e]; });
    }
  }

  template <class In>
  void check_pair(const RotationTensor<T>& t, int64_t b, int64_t l, int64_t h, int64_t k,
                  const In& in) {
    const auto channel = [&](bool interleaved, int64_t second) {
      return start + (interleaved ? 2 * k + second : k + second * n);
    };
    const auto [cos_lo, sin_lo, cos_hi, sin_hi] = coefficients(b, l, h, k);
    const long double x0 = core::to_compute(in(b, l, h, channel(interleaved_in, 0)));
    const long double x1 = core::to_compute(in(b, l, h, channel(interleaved_in, 1)));
    const long double want[2] = {x0 * cos_lo - x1 * sin_lo, x0 * sin_hi + x1 * cos_hi};
    for (int second = 0; second < 2; ++second) {
      const long double got =
          core::to_compute(t.y[t.at(t.ys, b, l, h, channel(interleaved_out, second))]);
      const double size = std::max(1.0, std::abs(static_cast<double>(want[second])));
      const auto error = static_cast<double>(std::abs(got - want[second]) / size);
      worst = error <= INFINITY ? std::max(worst, error / ulp()) : INFINITY;
    }
  }
};

}  // namespace posenc::test
