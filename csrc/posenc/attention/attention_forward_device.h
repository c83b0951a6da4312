#pragma once

// The forward of biased attention on the device: one block of threads has one tile of query rows
// (and, where there are few tiles, one part of the keys), keeps a running maximum and sum, and
// visits key blocks from near to far. See attention_device.h.

#include <posenc/attention/attention_device_mma.h>
#include <posenc/attention/attention_device_rows.h>

namespace posenc::attention::device {

/// Writes a thread's channels of a row: the result, or its share for merge_body.
template <class Tile, class T, class Gpu, class Engine>
POSENC_HD void write_row(const Gpu& gpu, const Params& p, const Work& w, const Engine& engine,
                         const RowPlace& place, T most, T sum, bool seen,
                         const T (&values)[Tile::C]) {
  constexpr int kAdjacent = Tile::kAdjacent;
  const int first = w.slice * Tile::kWidth;
  const bool leader = engine.lane() == 0 && w.slice == 0;
  const int64_t row = p.row_index(w.batch, place.head, place.query);
  if (p.parts > 1) {
    T* to = static_cast<T*>(p.partial) + (row * p.parts + w.part) * (2 + p.v_dim);
    if (leader) {
      gpu.store(to, most);
      gpu.store(to + 1, sum == 0 && seen ? T(-1) : sum);  // −1: keys, but none with weight
    }
    POSENC_UNROLL
    for (int c = 0; c < Tile::C; ++c) {
      if (first + engine.channel(c) < p.v_dim) {
        gpu.store(to + 2 + first + engine.channel(c), values[c]);
      }
    }
    return;
  }
  const T nothing = seen ? infinity<T>() - infinity<T>() : T(0);  // scores of −infinity: NaN
  if (leader) {
    const T lse = sum == 0 ? (seen ? nothing : -infinity<T>()) : most + log_of(sum);
    gpu.store(static_cast<T*>(p.lse) + row, lse);
  }
  const T inverse = 1 / sum;
  const int64_t to = p.out.offset(w.batch, place.head, place.query);
  POSENC_UNROLL
  for (int c = 0; c < Tile::C; c += kAdjacent) {
    T pack[kAdjacent];
    POSENC_UNROLL
    for (int n = 0; n < kAdjacent; ++n) {
      pack[n] = sum == 0 ? nothing : values[c + n] * inverse;
    }
    store_channels(gpu, Tile::dtype(p), p.out, to, first + engine.channel(c), p.v_dim, pack);
  }
}

template <class Tile>
GridShape forward_grid(const Params& p) {
  return {p.pairs * p.tiling.count * p.parts * p.slices, 1, 1, Tile::kThreads,
          Tile::shared_bytes(p, 1) + RowTile<typename Tile::T>::bytes(Tile::kRows)};
}

/// Tile: an engine, see attention_device_fma.h.
template <class Tile, class Bias, class Gpu>
POSENC_HD void forward_body(const Gpu& gpu, const Params& p) {
  using T = typename Tile::T;
  constexpr int M = Tile::M, N = Tile::N, C = Tile::C, kRows = Tile::kRows;
  const typename Tile::template Engine<Gpu> engine(gpu, p, 1);
  const Work w = forward_work(p, gpu.block(0));
  const Tiling::Tile tile = p.tiling.at(w.tile);
  const RowTile<T> s = RowTile<T>::at(gpu, engine.end(), kRows);
  begin_rows(gpu, p, w, tile, Tile::dtype(p), kRows, s);
  const Operand queries{p.q, p.head_dim, [&s](int r) { return s.offset[r]; }};
  engine.keep(0, queries);
  const int rows = tile.rows(), first_channel = w.slice * Tile::kWidth;
  const double base = s.position[0];
  double first_query, last_query;
  position_range(gpu, rows, s, first_query, last_query);

  T most[M], sum[M], dropped[M], values[M][C];
  bool seen[M];
  int64_t mask_row[M];
  POSENC_UNROLL
  for (int i = 0; i < M; ++i) {
    most[i] = -infinity<T>();
    sum[i] = dropped[i] = 0;
    seen[i] = false;
    const int r = engine.row(i);
    const RowPlace place = place_of(p, w, tile, r < rows ? r : 0);
    mask_row[i] = w.batch * p.mask_batch + place.head * p.mask_head + place.query * p.mask_row;
    POSENC_UNROLL
    for (int c = 0; c < C; ++c) {
      values[i][c] = 0;
    }
  }

  const int64_t begin = p.key_blocks * w.part / p.parts,
                end = p.key_blocks * (w.part + 1) / p.parts;
  const T* const norms = static_cast<const T*>(p.norm);
  Walk walk = Walk::from(gpu, p, w.pair, first_query, last_query, begin, end);
  int64_t block = Walk::nearest_block(gpu, p, w.pair, first_query, last_query);
  // A part that does not hold the nearest block begins with it all the same: its scores tell what
  // the part's own keys are compared with.
  bool seeding = p.parts > 1 && begin < end && (block < begin || block >= end);
  int64_t computed = 0, fetched = -1;  // fetched: whose k is there, or on its way
  for (;; seeding = false) {
    if (!seeding && !walk.next(block)) {
      break;
    }
    const double low = block_first(gpu, p, w.pair, block), high = block_last(gpu, p, w.pair, block);
    if (p.causal && low > last_query) {
      continue;
    }
    if (p.mask != nullptr) {
      scan_mask(gpu, p, w, tile, block, kRows, s);
    }
    const int64_t index = w.pair * p.key_blocks + block;
    T norm = infinity<T>();
    if (norms != nullptr && !seeding) {
      norm = gpu.load(norms + index);
      const int side = high < first_query ? -1 : low > last_query ? 1 : 0;
      const void* far = side == 0 ? nullptr : side < 0 ? p.left_max : p.right_max;
      const T far_norm =
          far != nullptr ? gpu.load(static_cast<const T*>(far) + index) : infinity<T>();
      const Need need =
          rows_need<Bias>(gpu, p, base, low, high, norm, far_norm, far != nullptr, rows, s);
      if (!need.beyond) {
        walk.stop(side);
        continue;
      }
      if (!need.block) {
        continue;
      }
    } else if (p.mask != nullptr) {
      unsigned any = 0;
      for (int r = gpu.lane(); r < rows; r += 32) {
        any |= static_cast<unsigned>(s.any_row[r]);
      }
      if (or_lanes(gpu, any) == 0) {
        continue;
      }
    }
    computed += !seeding;

    const int keys = block_keys(p, block);
    const bool restricted = p.mask != nullptr || keys < kKeys || (p.causal && high > first_query);
    // A value that is not finite shows even at weight 0, unless its key is masked: then it is not
    // touched, which a weight of −1 says.
    const bool finite = norm < infinity<T>();
    const T masked_weight = finite ? T(0) : T(-1);
    const T share = finite || norms == nullptr ? static_cast<T>(p.drop_share) : T(0);
    if (gpu.thread() < kKeys) {
      const int t = gpu.thread();
      s.key_position[t] = key_position(gpu, p, w.batch, block * kKeys + (t < keys ? t : keys - 1));
      s.relative_key[t] = static_cast<T>(s.key_position[t] - base);
    }
    const auto k = key_operand(p, w, p.k, p.head_dim, block);
    const auto v = key_operand(p, w, p.v, p.v_dim, block);
    engine.template arrive<0>();
    if (fetched != block) {
      engine.fetch(0, k, 0);
    }
    engine.fetch(1, v, first_channel);
    if (fetched != block) {
      engine.template arrive<1>();
    }
    T scores[M][N];
    engine.scores(0, queries, k, scores);

    bool weighs = false;
    POSENC_UNROLL
    for (int i = 0; i < M; ++i) {
      const int r = engine.row(i);
      const T position = s.relative[r], coefficient = s.coefficient[r];
      unsigned allowed = ~0u;  // bit j: column j is seen
      if (restricted) {
        allowed = 0;
        POSENC_UNROLL_BY(1)
        for (int j = 0; j < N; ++j) {
          const int t = engine.column(j);
          const bool sees = t < keys && r < rows &&
                            (!p.causal || s.key_position[t] <= s.position[r]) &&
                            (p.mask == nullptr ||
                             gpu.load(p.mask + mask_row[i] + (block * kKeys + t) * p.mask_last));
          allowed |= sees ? 1u << j : 0u;
        }
      }
      T best = -infinity<T>();
      POSENC_UNROLL
      for (int j = 0; j < N; ++j) {
        const T x = Bias::add(scores[i][j] * static_cast<T>(p.scale), coefficient,
                              absolute(s.relative_key[engine.column(j)] - position));
        scores[i][j] = (allowed >> j & 1u) != 0 ? x : -infinity<T>();
        best = max_nan(best, scores[i][j]);
      }
      best = max_lanes(gpu, best, Tile::kLanes);
      if (seeding) {
        // NaN stays out of the seed: the row meets it again where it is due.
        if (engine.lane() == 0 && best > -infinity<T>()) {
          s.seed[r] = best;
        }
        continue;
      }
      seen[i] = seen[i] || allowed != 0;
      const T lost = exp_of(best - most[i]) * static_cast<T>(keys) + dropped[i];
      const bool drop = lost < sum[i] * share;  // false for NaN: −infinity − −infinity
      const T new_most = drop ? most[i] : max_nan(most[i], best);
      const T shift = new_most == -infinity<T>() ? T(0) : new_most;
      const T fix = new_most == most[i] ? T(1) : exp_of(most[i] - shift);
      T block_sum = 0;
      POSENC_UNROLL
      for (int j = 0; j < N; ++j) {
        const T weight = drop ? T(0) : exp_of(scores[i][j] - shift);
        const bool touched = (allowed >> j & 1u) != 0;
        block_sum += touched ? weight : T(0);
        scores[i][j] = touched ? weight : masked_weight;
      }
      block_sum = sum_lanes(gpu, block_sum, Tile::kLanes);
      dropped[i] = drop ? lost : dropped[i];
      sum[i] = sum[i] * fix + block_sum;
      most[i] = new_most;
      weighs = weighs || (!drop && r < rows);
      POSENC_UNROLL
      for (int c = 0; c < C; ++c) {
        values[i][c] *= fix;
      }
      if (engine.lane() == 0) {
        s.lse[r] = new_most + log_of(sum[i]);
      }
    }
    const bool any = any_thread(gpu, s.votes, weighs);
    if constexpr (Tile::kFetches) {
      // The next block, most likely, while this one's values are multiplied.
      Walk ahead = walk;
      fetched = block;
      if (ahead.next(fetched)) {
        engine.fetch(0, key_operand(p, w, p.k, p.head_dim, fetched), 0);
        engine.template arrive<1>();
      } else {
        fetched = -1;
        engine.template arrive<0>();
      }
    }
    if (any) {
      engine.values(
          1, scores, v, first_channel, !finite, [](int, int, T weight) { return !(weight < 0); },
          values);
    }
  }
  engine.template arrive<0>();

  POSENC_UNROLL
  for (int i = 0; i < M; ++i) {
    const int r = engine.row(i);
    const bool row_seen = or_lanes(gpu, seen[i] ? 1u : 0u, Tile::kLanes) != 0;
    if (r < rows) {
      write_row<Tile>(gpu, p, w, engine, place_of(p, w, tile, r), most[i], sum[i], row_seen,
                      values[i]);
    }
  }
  if (p.counts != nullptr) {
    store_counts(gpu, p, w, begin, end, last_query, computed);
  }
}

inline GridShape merge_grid(const Params& p) {
  const int64_t rows = p.pairs * p.group * p.q_len;
  return {core::ceil_div(rows, kRowThreads / 32), 1, 1, kRowThreads, 0};
}

/// Puts the parts of all rows together, in order; one warp a row.
template <class T, class Gpu>
POSENC_HD void merge_body(const Gpu& gpu, const Params& p) {
  const int64_t row = gpu.block(0) * int64_t{gpu.threads() / 32} + gpu.warp();
  if (row >= p.pairs * p.group * p.q_len) {
    return;
  }
  const int64_t stride = 2 + p.v_dim;
  const T* first = static_cast<const T*>(p.partial) + row * p.parts * stride;
  T most = -infinity<T>(), sum = 0;
  bool seen = false;
  for (int part = 0; part < p.parts; ++part) {
    most = max_nan(most, gpu.load(first + part * stride));
    seen = seen || gpu.load(first + part * stride + 1) < 0;
  }
  const T shift = most == -infinity<T>() ? T(0) : most;
  POSENC_UNROLL_BY(1)
  for (int part = 0; part < p.parts; ++part) {
    const T other = gpu.load(first + part * stride + 1);
    sum += other < 0 ? T(0) : other * exp_of(gpu.load(first + part * stride) - shift);
  }
  const T nothing = seen ? infinity<T>() - infinity<T>() : T(0);
  if (gpu.lane() == 0) {
    const T lse = sum == 0 ? (seen ? nothing : -infinity<T>()) : most + log_of(sum);
    gpu.store(static_cast<T*>(p.lse) + row, lse);
  }
  const int64_t i = row % p.q_len, head = row / p.q_len % p.heads, batch = row / p.q_len / p.heads;
  const int64_t to = p.out.offset(batch, head, i);
  for (int c = gpu.lane(); c < p.v_dim; c += 32) {
    T value = 0;
    POSENC_UNROLL_BY(1)
    for (int part = 0; part < p.parts; ++part) {
      const T weight = exp_of(gpu.load(first + part * stride) - shift);
      value += gpu.load(first + part * stride + 2 + c) * weight;
    }
    store_as<T>(gpu, p.dtype, p.out, to + c * p.out.last, sum == 0 ? nothing : value / sum);
  }
}

}  // namespace posenc::attention::device
