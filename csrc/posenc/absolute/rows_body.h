#pragma once

// The CUDA kernels of this room: one body, y = x · scale + row(position), whose x is a tensor of
// any strides, rows of a table by token, or nothing, and whose row is a sinusoidal encoding or a
// row of a table by position. Neither torch nor CUDA headers: the same lines run on the host in
// tests (see core/gpu_context.h).

#include <posenc/absolute/rows_device.h>
#include <posenc/core/gpu_context.h>

#include <limits>

namespace posenc::absolute {

using core::ComputeType;
using core::Pack;

/// a / b for numbers ≥ 0; 32 bits divide several times as fast.
POSENC_HD inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

/// x as a tensor.
template <class T>
struct TensorSource {
  const T* row;

  template <class Ctx>
  POSENC_HD TensorSource(const Ctx&, const RowsDeviceParams& p, int64_t, int64_t, int64_t x_at)
      : row(static_cast<const T*>(p.x) + x_at) {}

  template <int N, class Ctx>
  POSENC_HD void load(const Ctx& gpu, const RowsDeviceParams& p, int64_t channel,
                      ComputeType<T> (&x)[N]) const {
    if constexpr (N > 1) {
      core::unpack(gpu.load(reinterpret_cast<const Pack<T, N>*>(row + channel)), x);
    } else {
      x[0] = core::to_compute(gpu.load(row + channel * p.walk.x.channel));
    }
  }
};

/// A row of a table: N channels of it.
template <class T, int N, class Ctx>
POSENC_HD void load_table(const Ctx& gpu, const TableView& table, int64_t row, int64_t channel,
                          ComputeType<T> (&x)[N]) {
  const T* at = static_cast<const T*>(table.data) + row * table.row_stride + channel;
  core::unpack(gpu.load(reinterpret_cast<const Pack<T, N>*>(at)), x);
}

/// x as the embedding of a token.
template <class T>
struct TokenSource {
  int64_t row;

  template <class Ctx>
  POSENC_HD TokenSource(const Ctx& gpu, const RowsDeviceParams& p, int64_t b, int64_t l, int64_t)
      : row(core::load_id(gpu, p.tokens, b, l)) {
    gpu.require(row >= 0 && row < p.source.rows,
                "embed_tokens: expected input_ids within the rows of the table");
  }

  template <int N, class Ctx>
  POSENC_HD void load(const Ctx& gpu, const RowsDeviceParams& p, int64_t channel,
                      ComputeType<T> (&x)[N]) const {
    load_table<T>(gpu, p.source, row, channel, x);
  }
};

/// Nothing: the encoding alone.
template <class T>
struct NoSource {
  template <class Ctx>
  POSENC_HD NoSource(const Ctx&, const RowsDeviceParams&, int64_t, int64_t, int64_t) {}

  template <int N, class Ctx>
  POSENC_HD void load(const Ctx&, const RowsDeviceParams&, int64_t, ComputeType<T> (&x)[N]) const {
    for (int e = 0; e < N; ++e) {
      x[e] = 0;
    }
  }
};

/// A slice's frequencies in the block's shared memory.
struct StagedSlice {
  uint64_t* fraction;
  int32_t* whole;

  template <class Ctx>
  POSENC_HD explicit StagedSlice(const Ctx& gpu)
      : fraction(gpu.template shared<uint64_t>(0)),
        whole(gpu.template shared<int32_t>(kFractionBytes)) {}

  /// By every thread of the block.
  template <class Ctx>
  POSENC_HD void fill(const Ctx& gpu, const RowsDeviceParams& p) const {
    for (int i = gpu.thread(); i < p.slice.count; i += gpu.threads()) {
      fraction[i] = p.slice.fraction[i];
      whole[i] = p.slice.whole[i];
    }
    gpu.sync();
  }
};

/// sin and cos of a position by the i-th frequency of a slice.
template <class C>
struct SliceAngle;

template <>
struct SliceAngle<double> {
  double position;

  template <class Ctx>
  POSENC_HD SliceAngle(const Ctx& gpu, const RowsDeviceParams& p, int64_t b, int64_t l)
      : position(core::load_position(gpu, p.positions, b, l)) {}

  POSENC_HD void operator()(const StagedSlice& slice, int64_t i, double& s, double& c) const {
    core::exact_sincos(position, core::bit_cast<double>(slice.fraction[i]), s, c);
  }
};

template <>
struct SliceAngle<float> {
  core::FixedPosition position;

  template <class Ctx>
  POSENC_HD SliceAngle(const Ctx& gpu, const RowsDeviceParams& p, int64_t b, int64_t l)
      : position(core::load_fixed_position(gpu, p.positions, b, l)) {}

  POSENC_HD void operator()(const StagedSlice& slice, int64_t i, float& s, float& c) const {
    const int32_t whole = slice.whole[i];
    core::sincos_of_turns(
        core::phase_turns(position, slice.fraction[i], position.rest == 0 ? 0 : whole), s, c);
    if (!position.known || whole == core::kNoTurn) {
      s = c = std::numeric_limits<float>::quiet_NaN();
    }
  }
};

/// The sinusoidal encoding of a position, N of the slice's channels from v on.
template <class T>
struct SinusoidalAddend {
  /// Before the first load, by every thread of the block.
  template <class Ctx>
  POSENC_HD static void begin(const Ctx& gpu, const RowsDeviceParams& p) {
    StagedSlice(gpu).fill(gpu, p);
  }

  template <int N, class Ctx>
  POSENC_HD static void load(const Ctx& gpu, const RowsDeviceParams& p, int64_t b, int64_t l,
                             int64_t v, ComputeType<T> (&row)[N]) {
    using C = ComputeType<T>;
    const FrequencySlice& slice = p.slice;
    const StagedSlice staged(gpu);
    const SliceAngle<C> angle(gpu, p, b, l);
    if constexpr (N > 1) {
      // A pack is of pairs, or of sines or cosines alone; an odd width has no packs.
      if (slice.interleaved) {
        for (int e = 0; e < N; e += 2) {
          angle(staged, (v + e) / 2, row[e], row[e + 1]);
        }
        return;
      }
    }
    for (int e = 0; e < N; ++e) {
      const int64_t c = v + e;
      if (N == 1 && c >= 2 * int64_t{slice.count}) {
        row[e] = 0;  // an odd width's last channel
        return;
      }
      const bool cosine = slice.interleaved ? (c & 1) != 0 : c >= slice.count;
      C s, other;
      angle(staged, slice.interleaved ? c / 2 : cosine ? c - slice.count : c, s, other);
      row[e] = cosine ? other : s;
    }
  }
};

/// The row of a table that a position names.
template <class T>
struct TableAddend {
  template <class Ctx>
  POSENC_HD static void begin(const Ctx&, const RowsDeviceParams&) {}

  template <int N, class Ctx>
  POSENC_HD static void load(const Ctx& gpu, const RowsDeviceParams& p, int64_t b, int64_t l,
                             int64_t v, ComputeType<T> (&row)[N]) {
    const int64_t position = core::load_id(gpu, p.positions, b, l);
    gpu.require(position >= 0 && position < p.addend.rows,
                "add_positions: expected positions within the rows of the table");
    load_table<T>(gpu, p.addend, position, v, row);
  }
};

template <class T, int N, template <class> class Source, template <class> class Addend, class Ctx>
POSENC_HD void add_rows_body(const Ctx& gpu, const RowsDeviceParams& p) {
  using C = ComputeType<T>;
  const DeviceWalk& walk = p.walk;
  Addend<T>::begin(gpu, p);
  const int64_t groups = p.channels / N;  // packed: N divides it
  const int64_t task = int64_t{gpu.block(0)} * gpu.threads() + gpu.thread();
  const int64_t l = quotient(task, groups);
  if (l >= walk.length) {
    return;
  }
  const int64_t v = (task - l * groups) * N;
  const int64_t channel = p.slice.n > 0 ? p.slice.channel(v) : v;
  const C scale = static_cast<C>(p.scale);

  const int64_t rest_rows = walk.rest_rows(), rows = walk.batch * rest_rows;
  const int64_t first = rows * gpu.block(1) / gpu.blocks(1);
  const int64_t last = rows * (gpu.block(1) + 1) / gpu.blocks(1);
  int64_t b = quotient(first, rest_rows), rest = first - b * rest_rows;
  C addend[N];
  bool have_addend = false;
  for (int64_t r = first; r < last; ++r) {
    if (!have_addend) {
      Addend<T>::load(gpu, p, b, l, v, addend);
      have_addend = true;
    }
    int64_t x_at = b * walk.x.batch + l * walk.x.time, y_at = b * walk.y.batch + l * walk.y.time;
    int64_t left = rest;
    for (int k = walk.rest_dims - 1; k >= 0; --k) {
      const int64_t next = k == 0 ? 0 : quotient(left, walk.rest_size[k]);
      const int64_t i = left - next * walk.rest_size[k];
      x_at += i * walk.x.rest[k];
      y_at += i * walk.y.rest[k];
      left = next;
    }
    const Source<T> source(gpu, p, b, l, x_at);
    C x[N];
    source.load(gpu, p, channel, x);
    for (int e = 0; e < N; ++e) {
      x[e] = x[e] * scale + addend[e];
    }
    T* y = static_cast<T*>(p.y) + y_at;
    if constexpr (N > 1) {
      gpu.store(reinterpret_cast<Pack<T, N>*>(y + channel), core::pack<T, N>(x));
    } else {
      gpu.store(y + channel * walk.y.channel, core::from_compute<T>(x[0]));
    }
    if (++rest == rest_rows) {
      rest = 0;
      ++b;
      have_addend = p.positions.batch_stride == 0;
    }
  }
}

template <class Ctx>
POSENC_HD void check_ids_body(const Ctx& gpu, const CheckIdsParams& p) {
  const int64_t i = int64_t{gpu.block(0)} * gpu.threads() + gpu.thread();
  if (i < p.batch * p.length) {
    const int64_t b = quotient(i, p.length);
    const int64_t row = core::load_id(gpu, p.ids, b, i - b * p.length);
    gpu.require(row >= 0 && row < p.rows,
                "_add_positions_backward: expected positions within the rows of the table");
  }
}

}  // namespace posenc::absolute
