#pragma once

// The query rows of a tile: which block of the grid has which, what its threads share of them, and
// whether they need a block of keys. See attention_device.h.

#include <posenc/attention/attention_device_keys.h>

namespace posenc::attention::device {

/// Which block of the grid does what. Later heads (flatter slopes) and later tiles (more keys under
/// a causal mask) come first: the long ones. All of it is below the number of blocks, which CUDA
/// keeps below 2^31, and in 32 bits it takes half the registers.
struct Work {
  int pair, batch, kv_head, tile;
  int part, slice;

  /// What is left of the index of a block after its slice and part. \param tiles of a pair
  POSENC_HD void set_pair_and_tile(const Params& p, int64_t index, int64_t tiles) {
    tile = static_cast<int>(tiles - 1 - index % tiles);
    pair = static_cast<int>(p.pairs - 1 - index / tiles);
    batch = static_cast<int>(pair / p.kv_heads);
    kv_head = static_cast<int>(pair % p.kv_heads);
  }
};

POSENC_HD inline Work forward_work(const Params& p, int64_t index) {
  Work w{};
  w.slice = static_cast<int>(index % p.slices);
  index /= p.slices;
  w.part = static_cast<int>(index % p.parts);
  index /= p.parts;
  w.set_pair_and_tile(p, index, p.tiling.count);
  return w;
}

/// What the threads of a block share of its rows. T is the compute type.
template <class T>
struct RowTile {
  int64_t* offset;  ///< of q; −1 for rows past the last
  double *position, *key_position;
  T *relative, *coefficient, *reach;
  T* lse;   ///< what the row's log-sum-exp is at least
  T* seed;  ///< that by the nearest block, for a part of the keys that does not hold it
  T* relative_key;
  int* any_row;  ///< whether the row may see a key of this block, as the mask says
  int* votes;    ///< one a warp

  static constexpr int bytes(int rows) {
    return rows * static_cast<int>(8 + 8 + 5 * sizeof(T) + 4) +
           kKeys * static_cast<int>(8 + sizeof(T)) + 32;
  }

  template <class Gpu>
  POSENC_HD static RowTile at(const Gpu& gpu, int begin, int rows) {
    RowTile t{};
    t.offset = gpu.template shared<int64_t>(begin);
    t.position = reinterpret_cast<double*>(t.offset + rows);
    t.key_position = t.position + rows;
    t.relative = reinterpret_cast<T*>(t.key_position + kKeys);
    t.coefficient = t.relative + rows;
    t.reach = t.coefficient + rows;
    t.lse = t.reach + rows;
    t.seed = t.lse + rows;
    t.relative_key = t.seed + rows;
    t.any_row = reinterpret_cast<int*>(t.relative_key + kKeys);
    t.votes = t.any_row + rows;
    return t;
  }
};

/// Query head and query of row r.
struct RowPlace {
  int64_t head, query;
};
POSENC_HD inline RowPlace place_of(const Params& p, const Work& w, const Tiling::Tile& tile,
                                   int r) {
  return {w.kv_head * p.group + tile.head + r / tile.queries, tile.query + r % tile.queries};
}

POSENC_HD inline bool mask_at(const Params& p, int64_t row, int64_t j) {
  return p.mask[row + j * p.mask_last];
}

/// Fills offset, position, relative, coefficient, and the norms of the queries; one warp a row.
template <class T, class Gpu>
POSENC_HD void begin_rows(const Gpu& gpu, const Params& p, const Work& w, const Tiling::Tile& tile,
                          Dtype dtype, int rows, const RowTile<T>& s) {
  constexpr int kPack = kPackOf<T>;
  const double base = query_position(gpu, p, w.batch, tile.query);
  for (int r = gpu.thread(); r < rows; r += gpu.threads()) {
    const bool exists = r < tile.rows();
    const RowPlace place = place_of(p, w, tile, exists ? r : 0);
    s.offset[r] = exists ? p.q.offset(w.batch, place.head, place.query) : -1;
    s.position[r] = query_position(gpu, p, w.batch, place.query);
    s.relative[r] = static_cast<T>(s.position[r] - base);
    s.coefficient[r] = static_cast<T>(gpu.load(p.bias.coefficient_at(w.batch, place.head)));
    s.lse[r] = s.seed[r] = -infinity<T>();
    s.any_row[r] = 1;
  }
  gpu.sync();
  for (int r = gpu.warp(); r < rows; r += gpu.threads() / 32) {
    T squares = 0;
    for (int c = gpu.lane() * kPack; c < p.head_dim; c += 32 * kPack) {
      T values[kPack];
      load_channels(gpu, dtype, p.q, s.offset[r], c, p.head_dim, values);
      for (int n = 0; n < kPack; ++n) {
        squares += values[n] * values[n];
      }
    }
    const T norm = norm_above(sum_lanes(gpu, squares), p.head_dim);
    if (gpu.lane() == 0) {
      s.reach[r] = absolute(static_cast<T>(p.scale)) * norm;
    }
  }
  gpu.sync();
}

/// The range of the query positions of a tile, the same in every thread.
template <class T, class Gpu>
POSENC_HD void position_range(const Gpu& gpu, int rows, const RowTile<T>& s, double& first,
                              double& last) {
  first = infinity<double>();
  last = -infinity<double>();
  for (int r = gpu.lane(); r < rows; r += 32) {
    first = s.position[r] < first ? s.position[r] : first;
    last = s.position[r] > last ? s.position[r] : last;
  }
  first = min_lanes(gpu, first);
  last = max_lanes(gpu, last);
}

/// Sets any_row by the mask. Barriers around it.
template <class T, class Gpu>
POSENC_HD void scan_mask(const Gpu& gpu, const Params& p, const Work& w, const Tiling::Tile& tile,
                         int64_t block, int rows, const RowTile<T>& s) {
  const int per_row = gpu.threads() / rows, keys = block_keys(p, block);
  const int r = gpu.thread() / per_row;
  unsigned any = 0;
  if (r < tile.rows()) {
    const RowPlace place = place_of(p, w, tile, r);
    const int64_t row =
        w.batch * p.mask_batch + place.head * p.mask_head + place.query * p.mask_row;
    for (int t = gpu.thread() % per_row; t < keys; t += per_row) {
      any |= gpu.load(p.mask + row + (block * kKeys + t) * p.mask_last) ? 1u : 0u;
    }
  }
  any = or_lanes(gpu, any, per_row);
  gpu.sync();
  if (gpu.thread() % per_row == 0) {
    s.any_row[r] = static_cast<int>(any);
  }
  gpu.sync();
}

/// True in all threads where one of the block says so. One barrier; the votes may be cast again
/// after another.
template <class Gpu>
POSENC_HD bool any_thread(const Gpu& gpu, int* votes, bool vote) {
  const unsigned warp_vote = or_lanes(gpu, vote ? 1u : 0u);
  if (gpu.lane() == 0) {
    votes[gpu.warp()] = static_cast<int>(warp_vote);
  }
  gpu.sync();
  int any = 0;
  for (int n = 0; n < gpu.threads() / 32; ++n) {
    any |= votes[n];
  }
  return any != 0;
}

/// The rows of one block of k or v (or of a gradient of theirs).
POSENC_HD inline auto key_operand(const Params& p, const Work& w, const View& view, int channels,
                                  int64_t block) {
  const int keys = block_keys(p, block);
  const int64_t first = view.offset(w.batch, w.kv_head, block * kKeys), step = view.row;
  return Operand{view, channels, [=](int t) { return t < keys ? first + t * step : int64_t{-1}; }};
}

/// Which rows cannot do without a block, and whether all blocks beyond it can be left out.
struct Need {
  bool block, beyond;
};

/// Every warp asks for all rows and comes to the same answer. See need_of in tile_rows.h.
template <class Bias, class T, class Gpu>
POSENC_HD Need rows_need(const Gpu& gpu, const Params& p, double base, double block_low,
                         double block_high, T norm, T far_norm, bool has_far, int rows,
                         const RowTile<T>& s) {
  const T low = static_cast<T>(block_low - base), high = static_cast<T>(block_high - base);
  unsigned need = 0;
  for (int r = gpu.lane(); r < rows; r += 32) {
    const T position = s.relative[r], lse = max_nan(s.lse[r], s.seed[r]);
    const T coefficient = s.coefficient[r], reach = s.reach[r];
    const T span = absolute(low) + absolute(high) + absolute(position);
    const bool sees = s.any_row[r] != 0 && (!p.causal || block_low <= s.position[r]);
    need |= sees && may_weigh<Bias>(reach, norm, coefficient, low - position, high - position, span,
                                    lse, static_cast<T>(p.skip_log))
                ? 1u
                : 0u;
    need |= !has_far || may_weigh<Bias>(reach, far_norm, coefficient, low - position,
                                        high - position, span, lse,
                                        static_cast<T>(p.stop_log) - Bias::log_tail(coefficient))
                ? 2u
                : 0u;
  }
  need = or_lanes(gpu, need);
  return {(need & 1u) != 0, (need & 2u) != 0};
}

/// Key blocks computed, and those that position and causality leave.
template <class Gpu>
POSENC_HD void store_counts(const Gpu& gpu, const Params& p, const Work& w, int64_t begin,
                            int64_t end, double last_query, int64_t computed) {
  int possible = 0;
  for (int64_t block = begin + gpu.lane(); block < end; block += 32) {
    possible += !p.causal || block_first(gpu, p, w.pair, block) <= last_query ? 1 : 0;
  }
  possible = sum_lanes(gpu, possible);
  if (gpu.thread() == 0) {
    int64_t* to = p.counts + 2 * int64_t{gpu.block(0)};
    gpu.store(to, w.slice == 0 ? computed : 0);
    gpu.store(to + 1, w.slice == 0 ? int64_t{possible} : 0);
  }
}

}  // namespace posenc::attention::device
