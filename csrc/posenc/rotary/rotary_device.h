#pragma once

// The body of the rotation kernel; see rotary_device_args.h for how the work is shared.

#include <posenc/rotary/rotary_device_args.h>
#include <posenc/rotary/rotary_math.h>

#include <limits>

namespace posenc::rotary {

/// cos and sin of V pairs; the hi ones are those of the pairs' second channels.
template <class C, int V>
struct DeviceAngles {
  C cos_lo[V], sin_lo[V], cos_hi[V], sin_hi[V];
};

/// Positions of one axis.
POSENC_HD inline core::IdView axis_of(const RotaryDeviceParams& p, int axis) {
  core::IdView view = p.positions;
  if (view.data != nullptr) {
    const bool wide = view.type == core::IdType::kInt64 || view.type == core::IdType::kDouble;
    view.data = static_cast<const char*>(view.data) + axis * p.axis_stride * (wide ? 8 : 4);
  }
  return view;
}

/// Frequencies: one pure function of position and frequency, whatever way they are given.
template <class C, int V, class Ctx>
POSENC_HD void angles_from_frequencies(const Ctx& gpu, const RotaryDeviceParams& p, int64_t b,
                                       int64_t l, int64_t head, int pair,
                                       DeviceAngles<C, V>& angles) {
  const C factor = static_cast<C>(p.attention_factor);
  const double* list =
      p.inv_freq ? p.inv_freq + b * p.freq_batch + head * p.freq_head + p.first_pair : nullptr;
  core::FixedPosition fixed;
  double real = 0;
  int axis = -1;
  POSENC_UNROLL
  for (int e = 0; e < V; ++e) {
    const int i = pair + e;
    const int wanted = p.axis_stride != 0 ? p.axis[i] : 0;
    if (wanted != axis) {
      axis = wanted;
      if constexpr (std::is_same_v<C, double>) {
        real = core::load_position(gpu, axis_of(p, axis), b, l);
      } else {
        fixed = core::load_fixed_position(gpu, axis_of(p, axis), b, l);
      }
    }
    C sine, cosine;
    if constexpr (std::is_same_v<C, double>) {
      core::exact_sincos(real, list ? gpu.load(list + i) : core::bit_cast<double>(p.fraction[i]),
                         sine, cosine);
    } else {
      uint64_t fraction;
      int32_t whole;
      if (list) {
        const double f = gpu.load(list + i);
        const core::TurnFrequency turn = core::turn_frequency(f);
        fraction = turn.fraction;
        whole = core::has_turn_frequency(f) ? turn.whole : core::kNoTurn;
      } else {
        fraction = p.fraction[i];
        whole = p.whole[i];
      }
      core::sincos_of_turns(core::phase_turns(fixed, fraction, whole), sine, cosine);
      if (!fixed.known || whole == core::kNoTurn) {
        sine = cosine = std::numeric_limits<C>::quiet_NaN();
      }
    }
    angles.cos_lo[e] = angles.cos_hi[e] = cosine * factor;
    angles.sin_lo[e] = angles.sin_hi[e] = (p.inverse ? -sine : sine) * factor;
  }
}

template <class C, class Ctx>
POSENC_HD C load_table(const Ctx& gpu, const void* table, core::Dtype dtype, int64_t i) {
  switch (dtype) {
    case core::Dtype::kDouble:
      return static_cast<C>(gpu.load(static_cast<const double*>(table) + i));
    case core::Dtype::kFloat:
      return static_cast<C>(gpu.load(static_cast<const float*>(table) + i));
    case core::Dtype::kHalf:
      return static_cast<C>(core::to_compute(gpu.load(static_cast<const core::Half*>(table) + i)));
    default:
      return static_cast<C>(
          core::to_compute(gpu.load(static_cast<const core::BFloat16*>(table) + i)));
  }
}

template <class C, int V, class Ctx>
POSENC_HD void angles_from_tables(const Ctx& gpu, const RotaryDeviceParams& p, int64_t b, int64_t l,
                                  int pair, DeviceAngles<C, V>& angles) {
  const RotaryDeviceTables& t = p.tables;
  const int64_t row = core::load_id(gpu, p.positions, b, l);
  gpu.require(row >= 0 && row < t.n_rows,
              "apply_rotary: expected position_ids within the rows of cos and sin");
  const int64_t cos_row = b * t.cos_batch + row * t.cos_seq;
  const int64_t sin_row = b * t.sin_batch + row * t.sin_seq;
  POSENC_UNROLL
  for (int e = 0; e < V; ++e) {
    const int i = pair + e;
    const int lo = t.wide && t.wide_interleaved ? 2 * i : i;
    const int hi = !t.wide ? i : t.wide_interleaved ? 2 * i + 1 : p.n_pairs + i;
    angles.cos_lo[e] = load_table<C>(gpu, t.cos, t.cos_dtype, cos_row + lo * t.cos_last);
    C sin_lo = load_table<C>(gpu, t.sin, t.sin_dtype, sin_row + lo * t.sin_last);
    C sin_hi = sin_lo;
    angles.cos_hi[e] = angles.cos_lo[e];
    if (t.wide) {
      angles.cos_hi[e] = load_table<C>(gpu, t.cos, t.cos_dtype, cos_row + hi * t.cos_last);
      sin_hi = load_table<C>(gpu, t.sin, t.sin_dtype, sin_row + hi * t.sin_last);
    }
    // The transpose of [[cos_lo, -sin_lo], [sin_hi, cos_hi]] swaps the two sines.
    angles.sin_lo[e] = p.inverse ? -sin_hi : sin_lo;
    angles.sin_hi[e] = p.inverse ? -sin_lo : sin_hi;
  }
}

/// The two packs of channels that hold a chunk of pairs.
template <class T, int V>
struct PairPacks {
  core::Pack<T, V> first, second;
};

/// Elements from a head's first channel to the packs of a chunk of pairs: of either layout.
struct PairPlace {
  int64_t first, second;
};

POSENC_HD inline PairPlace pair_place(const RotaryDeviceParams& p, int pair, int pack,
                                      bool interleaved, int64_t last) {
  const int64_t i = p.first_pair + pair;
  const int64_t first = p.start + (interleaved ? 2 * i : i);
  return {first * last, (first + (interleaved ? pack : p.n_pairs)) * last};
}

template <class T, int V, class Ctx>
POSENC_HD core::Pack<T, V> load_pack(const Ctx& gpu, const T* p) {
  return gpu.load(reinterpret_cast<const core::Pack<T, V>*>(p));
}

template <class T, int V, class Ctx>
POSENC_HD void store_pack(const Ctx& gpu, T* p, const core::Pack<T, V>& pack) {
  gpu.store(reinterpret_cast<core::Pack<T, V>*>(p), pack);
}

/// Rotates V pairs in registers. Whole branches, not a choice of index: registers have none.
template <class T, int V>
POSENC_HD PairPacks<T, V> rotate_packs(const PairPacks<T, V>& in,
                                       const DeviceAngles<core::ComputeType<T>, V>& angles,
                                       bool interleaved_in, bool interleaved_out) {
  using C = core::ComputeType<T>;
  C x[2 * V], a[V], b[V], lo[V], hi[V], y[V], z[V];
  POSENC_UNROLL
  for (int e = 0; e < V; ++e) {
    x[e] = core::to_compute(in.first[e]);
    x[V + e] = core::to_compute(in.second[e]);
  }
  if (interleaved_in) {
    POSENC_UNROLL
    for (int e = 0; e < V; ++e) {
      a[e] = x[2 * e];
      b[e] = x[2 * e + 1];
    }
  } else {
    POSENC_UNROLL
    for (int e = 0; e < V; ++e) {
      a[e] = x[e];
      b[e] = x[V + e];
    }
  }
  POSENC_UNROLL
  for (int e = 0; e < V; ++e) {
    rotate_pair(a[e], b[e], angles.cos_lo[e], angles.sin_lo[e], angles.cos_hi[e], angles.sin_hi[e],
                lo[e], hi[e]);
  }
  if (interleaved_out) {
    POSENC_UNROLL
    for (int e = 0; e < V; ++e) {
      y[e] = e % 2 == 0 ? lo[e / 2] : hi[e / 2];
      z[e] = (V + e) % 2 == 0 ? lo[(V + e) / 2] : hi[(V + e) / 2];
    }
  } else {
    POSENC_UNROLL
    for (int e = 0; e < V; ++e) {
      y[e] = lo[e];
      z[e] = hi[e];
    }
  }
  return {core::pack<T, V>(y), core::pack<T, V>(z)};
}

/// A chunk of pairs of `heads` heads: rotated, or as they are. Four heads' loads are on their way
/// at once.
template <class T, int V, class Ctx>
POSENC_HD void rotate_heads(const Ctx& gpu, const RotaryDeviceParams& p,
                            const RotaryDevicePart& part, const T* x, T* y, int64_t heads, int pair,
                            const DeviceAngles<core::ComputeType<T>, V>& angles) {
  constexpr int kAtOnce = 4;
  const PairPlace in = pair_place(p, pair, V, p.interleaved_in, part.x_last);
  const PairPlace out =
      pair_place(p, pair, V, part.copied ? p.interleaved_in : p.interleaved_out, part.y_last);
  const auto finish = [&](const PairPacks<T, V>& packs, T* to) {
    const PairPacks<T, V> done =
        part.copied ? packs : rotate_packs(packs, angles, p.interleaved_in, p.interleaved_out);
    store_pack<T, V>(gpu, to + out.first, done.first);
    store_pack<T, V>(gpu, to + out.second, done.second);
  };
  int64_t h = 0;
  for (; h + kAtOnce <= heads; h += kAtOnce) {
    PairPacks<T, V> packs[kAtOnce];
    POSENC_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      packs[k] = {load_pack<T, V>(gpu, x + k * part.x_head + in.first),
                  load_pack<T, V>(gpu, x + k * part.x_head + in.second)};
    }
    POSENC_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      finish(packs[k], y + k * part.y_head);
    }
    x += kAtOnce * part.x_head;
    y += kAtOnce * part.y_head;
  }
  for (; h < heads; ++h, x += part.x_head, y += part.y_head) {
    finish({load_pack<T, V>(gpu, x + in.first), load_pack<T, V>(gpu, x + in.second)}, y);
  }
}

/// A pack of channels that are not rotated, of `heads` heads.
template <class T, int V, class Ctx>
POSENC_HD void copy_heads(const Ctx& gpu, const RotaryDeviceParams& p, const RotaryDevicePart& part,
                          const T* x, T* y, int64_t heads, int chunk) {
  const int64_t before = p.start / V;
  const int64_t channel =
      chunk < before ? int64_t{chunk} * V : p.start + 2 * p.n_pairs + (chunk - before) * V;
  for (int64_t h = 0; h < heads; ++h) {
    store_pack<T, V>(gpu, y + h * part.y_head + channel * part.y_last,
                     load_pack<T, V>(gpu, x + h * part.x_head + channel * part.x_last));
  }
}

template <class T, int V, bool kTables, class Ctx>
POSENC_HD void rotate_body(const Ctx& gpu, const RotaryDeviceParams& p) {
  using C = core::ComputeType<T>;
  const int64_t item = gpu.block(0) * int64_t{gpu.threads()} + gpu.thread();
  if (item >= p.batch * p.seq * p.chunks) {
    return;
  }
  const int64_t token = item / p.chunks;
  const int chunk = static_cast<int>(item - token * p.chunks);
  const int64_t b = token / p.seq, l = token - b * p.seq;
  const int pair = chunk * V;
  const bool rotates = chunk < p.pair_chunks;
  DeviceAngles<C, V> angles;
  if (kTables && rotates) {
    angles_from_tables<C, V>(gpu, p, b, l, pair, angles);
  } else if (rotates && p.freq_head == 0) {
    angles_from_frequencies<C, V>(gpu, p, b, l, 0, pair, angles);
  }
  // Heads are counted through all parts; this thread has those from `begin` to `end`.
  int64_t begin = int64_t{gpu.block(1)} * p.heads_per_thread;
  int64_t end = begin + p.heads_per_thread;
  for (int i = 0; i < p.n_parts; ++i) {
    const RotaryDevicePart& part = p.parts[i];
    const int64_t first = begin > 0 ? begin : 0;
    const int64_t heads = (end < part.heads ? end : part.heads) - first;
    begin -= part.heads;
    end -= part.heads;
    if (heads <= 0 || chunk >= part.chunks) {
      continue;
    }
    const T* x =
        static_cast<const T*>(part.x) + b * part.x_batch + l * part.x_seq + first * part.x_head;
    T* y = static_cast<T*>(part.y) + b * part.y_batch + l * part.y_seq + first * part.y_head;
    if (!rotates) {
      copy_heads<T, V>(gpu, p, part, x, y, heads, chunk - p.pair_chunks);
    } else if (kTables || p.freq_head == 0) {
      rotate_heads<T, V>(gpu, p, part, x, y, heads, pair, angles);
    } else {  // each head has frequencies of its own
      for (int64_t h = 0; h < heads; ++h) {
        angles_from_frequencies<C, V>(gpu, p, b, l, first + h, pair, angles);
        rotate_heads<T, V>(gpu, p, part, x + h * part.x_head, y + h * part.y_head, 1, pair, angles);
      }
    }
  }
}

}  // namespace posenc::rotary
