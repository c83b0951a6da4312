#pragma once

// What the backward knows of the query rows: a pass that finds it out, and what the threads of a
// block share of it later. See attention_device.h.

#include <posenc/attention/attention_device_rows.h>

namespace posenc::attention::device {

/// \name TileStats in memory
/// @{
template <class T, class Gpu>
POSENC_HD void store_stats(const Gpu& gpu, TileStats<T>* to, const TileStats<T>& stats) {
  gpu.store(&to->reach, stats.reach);
  gpu.store(&to->lse, stats.lse);
  gpu.store(&to->coefficient, stats.coefficient);
  gpu.store(&to->log_tail, stats.log_tail);
  gpu.store(&to->first, stats.first);
  gpu.store(&to->last, stats.last);
}
template <class T, class Gpu>
POSENC_HD TileStats<T> load_stats(const Gpu& gpu, const TileStats<T>* from) {
  return {gpu.load(&from->reach),    gpu.load(&from->lse),   gpu.load(&from->coefficient),
          gpu.load(&from->log_tail), gpu.load(&from->first), gpu.load(&from->last)};
}
/// @}

inline GridShape rows_grid(const Params& p) {
  return {p.pairs * p.tiling.count, 1, 1, kRowThreads,
          kRowThreads / 32 * static_cast<int64_t>(sizeof(TileStats<double>))};
}

/// delta = Σ dO·O − dlse, reach = |scale|·‖q‖ (infinite where q or dO is not finite) and tile_stats
/// of one tile; one warp a row.
template <class T, class Bias, class Gpu>
POSENC_HD void backward_rows_body(const Gpu& gpu, const Params& p) {
  constexpr int kPack = kPackOf<T>;
  Work w{};
  w.set_pair_and_tile(p, gpu.block(0), p.tiling.count);
  const Tiling::Tile tile = p.tiling.at(w.tile);
  const int warps = gpu.threads() / 32;
  const auto add = [](const TileStats<T>& a, const TileStats<T>& b) {
    TileStats<T> c{};
    c.reach = max_nan(a.reach, b.reach);
    c.lse = a.lse < b.lse ? a.lse : b.lse;
    c.coefficient = -max_nan(-a.coefficient, -b.coefficient);
    c.log_tail = max_nan(a.log_tail, b.log_tail);
    c.first = a.first < b.first ? a.first : b.first;
    c.last = a.last > b.last ? a.last : b.last;
    return c;
  };
  constexpr double kFar = infinity<double>();
  TileStats<T> stats{0, infinity<T>(), infinity<T>(), -infinity<T>(), kFar, -kFar};
  for (int r = gpu.warp(); r < tile.rows(); r += warps) {
    const RowPlace place = place_of(p, w, tile, r);
    const int64_t index = p.row_index(w.batch, place.head, place.query);
    T squares = 0, delta = 0, sums = 0;  // sums: of zeros, or NaN
    for (int c = gpu.lane() * kPack; c < p.head_dim; c += 32 * kPack) {
      T q[kPack];
      load_channels(gpu, p.dtype, p.q, p.q.offset(w.batch, place.head, place.query), c, p.head_dim,
                    q);
      for (int n = 0; n < kPack; ++n) {
        squares += q[n] * q[n];
      }
    }
    for (int c = gpu.lane() * kPack; c < p.v_dim; c += 32 * kPack) {
      T grad[kPack], out[kPack];
      load_channels(gpu, p.dtype, p.grad_out, p.grad_out.offset(w.batch, place.head, place.query),
                    c, p.v_dim, grad);
      load_channels(gpu, p.dtype, p.out, p.out.offset(w.batch, place.head, place.query), c, p.v_dim,
                    out);
      for (int n = 0; n < kPack; ++n) {
        delta += grad[n] * out[n];
        sums += grad[n] - grad[n];
      }
    }
    const T norm = norm_above(sum_lanes(gpu, squares), p.head_dim);
    delta = sum_lanes(gpu, delta);
    sums = sum_lanes(gpu, sums);
    if (p.grad_lse != nullptr) {
      delta -= gpu.load(static_cast<const T*>(p.grad_lse) + index);
    }
    const T reach = sums == 0 ? absolute(static_cast<T>(p.scale)) * norm : infinity<T>();
    const T lse = gpu.load(static_cast<const T*>(p.lse) + index);
    const T coefficient = static_cast<T>(gpu.load(p.bias.coefficient_at(w.batch, place.head)));
    const double position = query_position(gpu, p, w.batch, place.query);
    const T below = lse != lse ? -infinity<T>() : lse == -infinity<T>() ? infinity<T>() : lse;
    stats =
        add(stats, {reach, below, coefficient, Bias::log_tail(coefficient), position, position});
    if (gpu.lane() == 0) {
      gpu.store(static_cast<T*>(p.delta) + index, delta);
      gpu.store(static_cast<T*>(p.reach) + index, reach);
    }
  }
  auto* shared = gpu.template shared<TileStats<T>>(0);
  if (gpu.lane() == 0) {
    shared[gpu.warp()] = stats;
  }
  gpu.sync();
  if (gpu.thread() == 0) {
    for (int n = 1; n < warps; ++n) {
      stats = add(stats, shared[n]);
    }
    auto* all = static_cast<TileStats<T>*>(p.tile_stats) + w.pair * p.tiling.count;
    store_stats(gpu, all + w.tile, stats);
  }
}

/// What the threads of a block share of a tile of queries in the backward.
template <class T>
struct GradientTile {
  static constexpr int kRows = kMostRows;
  int64_t *q_offset, *grad_offset, *mask_offset;
  double *position, *key_position;
  T *relative, *coefficient, *lse, *delta, *relative_key;
  int* votes;

  static constexpr int bytes() {
    return kRows * static_cast<int>(4 * 8 + 4 * sizeof(T)) +
           kKeys * static_cast<int>(8 + sizeof(T)) + 32;
  }

  template <class Gpu>
  POSENC_HD static GradientTile at(const Gpu& gpu, int begin) {
    GradientTile t{};
    t.q_offset = gpu.template shared<int64_t>(begin);
    t.grad_offset = t.q_offset + kRows;
    t.mask_offset = t.grad_offset + kRows;
    t.position = reinterpret_cast<double*>(t.mask_offset + kRows);
    t.key_position = t.position + kRows;
    t.relative = reinterpret_cast<T*>(t.key_position + kKeys);
    t.coefficient = t.relative + kRows;
    t.lse = t.coefficient + kRows;
    t.delta = t.lse + kRows;
    t.relative_key = t.delta + kRows;
    t.votes = reinterpret_cast<int*>(t.relative_key + kKeys);
    return t;
  }

  /// One thread a row. No barrier. Rows past the last weigh nothing.
  template <class Gpu>
  POSENC_HD void load_rows(const Gpu& gpu, const Params& p, const Work& w,
                           const Tiling::Tile& tile) const {
    const double base = query_position(gpu, p, w.batch, tile.query);
    for (int r = gpu.thread(); r < kRows; r += gpu.threads()) {
      const bool exists = r < tile.rows();
      const RowPlace place = place_of(p, w, tile, exists ? r : 0);
      const int64_t index = p.row_index(w.batch, place.head, place.query);
      q_offset[r] = exists ? p.q.offset(w.batch, place.head, place.query) : -1;
      grad_offset[r] = exists ? p.grad_out.offset(w.batch, place.head, place.query) : -1;
      mask_offset[r] = w.batch * p.mask_batch + place.head * p.mask_head + place.query * p.mask_row;
      position[r] = query_position(gpu, p, w.batch, place.query);
      relative[r] = static_cast<T>(position[r] - base);
      coefficient[r] = static_cast<T>(gpu.load(p.bias.coefficient_at(w.batch, place.head)));
      const T row_lse = gpu.load(static_cast<const T*>(p.lse) + index);
      lse[r] = exists && row_lse != -infinity<T>() ? row_lse : infinity<T>();
      delta[r] = exists ? gpu.load(static_cast<const T*>(p.delta) + index) : T(0);
    }
  }

  /// One thread a key. No barrier.
  template <class Gpu>
  POSENC_HD void load_keys(const Gpu& gpu, const Params& p, const Work& w, int64_t block,
                           double base) const {
    const int keys = block_keys(p, block);
    for (int t = gpu.thread(); t < kKeys; t += gpu.threads()) {
      key_position[t] = key_position_of(gpu, p, w, block * kKeys + (t < keys ? t : keys - 1));
      relative_key[t] = static_cast<T>(key_position[t] - base);
    }
  }

  /// Whether row r may see key t of a block.
  template <class Gpu>
  POSENC_HD bool sees(const Gpu& gpu, const Params& p, int64_t block, int keys, int rows, int r,
                      int t) const {
    return t < keys && r < rows && (!p.causal || key_position[t] <= position[r]) &&
           (p.mask == nullptr ||
            gpu.load(p.mask + mask_offset[r] + (block * kKeys + t) * p.mask_last));
  }

 private:
  template <class Gpu>
  POSENC_HD static double key_position_of(const Gpu& gpu, const Params& p, const Work& w,
                                          int64_t j) {
    return device::key_position(gpu, p, w.batch, j);
  }
};

}  // namespace posenc::attention::device
