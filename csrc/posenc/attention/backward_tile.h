#pragma once

// The backward. A task owns kTaskBlocks blocks of keys and goes over the tiles: dk and dv grow in
// its scratch, a tile's dq is handed over by backward_add_dq. As in the forward, scores are (key ×
// row). For *_simd.cpp only.

#include <posenc/attention/tile_rows.h>

namespace posenc::attention {
namespace {

template <typename T>
struct BackwardScratch {
  Rows<T> rows;
  KeepTile<T> keep;
  T *q, *q_t, *go, *go_t;      ///< queries and dO of the tile, as rows and transposed
  T *scores, *grad_scores;     ///< become weights P and dS
  T *lse, *delta, *slope_sum;  ///< per row
  T *rel_key, *dq_t, *staging;
  T *k, *k_t, *v, *dk, *dv;  ///< of the task

  BackwardScratch(const AttentionParams& p, Arena& arena) {
    const int64_t width = Tiling::of(p).max_rows(), keys = kTaskBlocks * kKeyBlock;
    rows.take(arena, width);
    keep.take(arena, width);
    q = arena.take<T>(width * p.head_dim);
    q_t = arena.take<T>(width * p.head_dim);
    go = arena.take<T>(width * p.v_dim);
    go_t = arena.take<T>(width * p.v_dim);
    scores = arena.take<T>(kKeyBlock * width);
    grad_scores = arena.take<T>(kKeyBlock * width);
    lse = arena.take<T>(width);
    delta = arena.take<T>(width);
    slope_sum = arena.take<T>(width);
    rel_key = arena.take<T>(kKeyBlock);
    dq_t = arena.take<T>(p.head_dim * width);
    staging = arena.take<T>(kRowPad * (p.head_dim > p.v_dim ? p.head_dim : p.v_dim));
    k = arena.take<T>(keys * p.head_dim);
    k_t = arena.take<T>(keys * p.head_dim);
    v = arena.take<T>(keys * p.v_dim);
    dk = arena.take<T>(keys * p.head_dim);
    dv = arena.take<T>(keys * p.v_dim);
  }
};

template <typename S>
void backward_rows(const AttentionParams& p, int64_t pair, int64_t tile_index, void* scratch) {
  using T = compute_t<S>;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Arena arena(scratch);
  BackwardScratch<T> s(p, arena);
  const Tile tile = Tiling::of(p).at(tile_index);
  Rows<T>& rows = s.rows;
  rows.begin(p, pair, tile);
  T *a = s.q, *b = s.go, *c = s.go_t;
  TileStats stats{0, kInfinity, kInfinity, kInfinity, -kInfinity};
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t head = rows.kv_head * p.group + rows.head(r), i = rows.query(r);
    const int64_t index = (rows.batch * p.heads + head) * p.q_len + i;
    load_row(row_of<S>(p.q, p.q_strides, rows.batch, head, i), p.q_strides.last, a, p.head_dim);
    load_row(row_of<S>(p.grad_out, p.grad_out_strides, rows.batch, head, i),
             p.grad_out_strides.last, b, p.v_dim);
    load_row(row_of<S>(p.out_in, p.out_in_strides, rows.batch, head, i), p.out_in_strides.last, c,
             p.v_dim);
    T delta = dot(b, c, p.v_dim);
    if (p.grad_lse != nullptr) {
      delta -= static_cast<const T*>(p.grad_lse)[index];
    }
    static_cast<T*>(p.delta)[index] = delta;
    double reach = std::abs(p.scale) * norm_above(a, p.head_dim);
    reach = all_finite(b, p.v_dim) ? reach : kInfinity;
    p.reach[index] = reach;
    const T lse = static_cast<const T*>(p.lse_in)[index];
    const double below = lse != lse          ? -kInfinity
                         : lse == -kInfinity ? kInfinity
                                             : static_cast<double>(lse);
    stats.reach = reach > stats.reach ? reach : stats.reach;
    stats.lse = below < stats.lse ? below : stats.lse;
    stats.coefficient =
        rows.coefficient[r] >= stats.coefficient ? stats.coefficient : rows.coefficient[r];
    stats.first = rows.position[r] < stats.first ? rows.position[r] : stats.first;
    stats.last = rows.position[r] > stats.last ? rows.position[r] : stats.last;
  }
  p.tile_stats[pair * Tiling::of(p).count + tile_index] = stats;
}

template <typename S>
void backward_begin(const AttentionParams& p, int64_t pair, int64_t first, void* scratch) {
  using T = compute_t<S>;
  Arena arena(scratch);
  BackwardScratch<T> s(p, arena);
  const int64_t batch = pair / p.kv_heads, kv_head = pair % p.kv_heads;
  for (int64_t n = 0; n < kTaskBlocks && first + n < p.key_blocks; ++n) {
    const int64_t keys = block_keys(p, first + n);
    T* k = s.k + n * kKeyBlock * p.head_dim;
    load_block<S>(p.k, p.k_strides, batch, kv_head, first + n, keys, p.head_dim, k);
    transpose(k, p.head_dim, kKeyBlock, p.head_dim, s.k_t + n * kKeyBlock * p.head_dim, kKeyBlock);
    load_block<S>(p.v, p.v_strides, batch, kv_head, first + n, keys, p.v_dim,
                  s.v + n * kKeyBlock * p.v_dim);
  }
  fill(s.dk, T(0), kTaskBlocks * kKeyBlock * p.head_dim);
  fill(s.dv, T(0), kTaskBlocks * kKeyBlock * p.v_dim);
}

/// Loads what the task needs of a tile: q, dO, lse, delta, reach.
template <typename S, typename T>
void load_tile(const AttentionParams& p, BackwardScratch<T>& s) {
  Rows<T>& rows = s.rows;
  for (int64_t r = 0; r < rows.width; ++r) {
    T *q = s.q + r * p.head_dim, *go = s.go + r * p.v_dim;
    if (r >= rows.rows) {
      fill(q, T(0), p.head_dim);
      fill(go, T(0), p.v_dim);
      s.lse[r] = std::numeric_limits<T>::infinity();
      s.delta[r] = 0;
      continue;
    }
    const int64_t head = rows.kv_head * p.group + rows.head(r), i = rows.query(r);
    load_row(row_of<S>(p.q, p.q_strides, rows.batch, head, i), p.q_strides.last, q, p.head_dim);
    load_row(row_of<S>(p.grad_out, p.grad_out_strides, rows.batch, head, i),
             p.grad_out_strides.last, go, p.v_dim);
    s.delta[r] = static_cast<const T*>(p.delta)[(rows.batch * p.heads + head) * p.q_len + i];
  }
  transpose(s.q, p.head_dim, rows.width, p.head_dim, s.q_t, rows.width);
  transpose(s.go, p.v_dim, rows.width, p.v_dim, s.go_t, rows.width);
}

/// Scores of a block become logarithms of weights, score + bias − lse. Returns whether one of its
/// keys weighs anything: the skipping test of need_of with the scores themselves in place of their
/// bound. A NaN always does.
template <Keep keep, class Bias, typename T>
bool log_weights(BackwardScratch<T>& s, int64_t keys, T scale, T drop_log) {
  const Rows<T>& rows = s.rows;
  const int64_t width = rows.width;
  const Vec<T> nothing(-std::numeric_limits<T>::infinity()), zero(0), factor(scale);
  Vec<T> most = nothing;
  for (int64_t r = 0; r < width; r += Vec<T>::size()) {
    const Vec<T> position = Vec<T>::loadu(rows.rel_position + r),
                 coef = Vec<T>::loadu(rows.coef + r), lse = Vec<T>::loadu(s.lse + r);
    for (int64_t t = 0; t < keys; ++t) {
      T* score = s.scores + t * width + r;
      const Vec<T> key(s.rel_key[t]);
      Vec<T> x = Bias::add(Vec<T>::loadu(score) * factor, coef, (key - position).abs()) - lse;
      if constexpr (keep == Keep::kCausal) {
        x = Vec<T>::blendv(nothing, x, key <= position);
      } else if constexpr (keep == Keep::kTile) {
        x = Vec<T>::blendv(nothing, x, Vec<T>::loadu(s.keep.keep + t * width + r) > zero);
      }
      x.store(score);
      most = at::vec::maximum(most, x);
    }
  }
  return (most < Vec<T>(drop_log)).zero_mask() != 0;
}

/// Those and dP become weights P and dS = P·(dP − delta); slope_sum gathers Σ
/// dS·d(bias)/d(coefficient).
template <Keep keep, class Bias, bool slopes, typename T>
void gradient_block(BackwardScratch<T>& s, int64_t keys) {
  const Rows<T>& rows = s.rows;
  const int64_t width = rows.width;
  const Vec<T> zero(0);
  for (int64_t r = 0; r < width; r += Vec<T>::size()) {
    const Vec<T> position = Vec<T>::loadu(rows.rel_position + r);
    const Vec<T> delta = Vec<T>::loadu(s.delta + r);
    Vec<T> slope_sum = Vec<T>::loadu(s.slope_sum + r);
    for (int64_t t = 0; t < keys; ++t) {
      T *score = s.scores + t * width + r, *grad = s.grad_scores + t * width + r;
      const Vec<T> key(s.rel_key[t]);
      const Vec<T> weight = exp_weight(Vec<T>::loadu(score));
      Vec<T> ds = weight * (Vec<T>::loadu(grad) - delta);
      if constexpr (keep == Keep::kCausal) {
        ds = Vec<T>::blendv(zero, ds, key <= position);
      } else if constexpr (keep == Keep::kTile) {
        ds = Vec<T>::blendv(zero, ds, Vec<T>::loadu(s.keep.keep + t * width + r) > zero);
      }
      weight.store(score);
      ds.store(grad);
      if constexpr (slopes) {
        slope_sum = slope_sum + ds * Bias::grad((key - position).abs());
      }
    }
    if constexpr (slopes) {
      slope_sum.store(s.slope_sum + r);
    }
  }
  fill(s.scores + keys * width, T(0), (kKeyBlock - keys) * width);
  fill(s.grad_scores + keys * width, T(0), (kKeyBlock - keys) * width);
}

template <class Bias, typename T>
bool log_weights(const AttentionParams& p, BackwardScratch<T>& s, Keep keep, int64_t keys,
                 T drop_log) {
  const T scale = static_cast<T>(p.scale);
  switch (keep) {
    case Keep::kAll:
      return log_weights<Keep::kAll, Bias>(s, keys, scale, drop_log);
    case Keep::kCausal:
      return log_weights<Keep::kCausal, Bias>(s, keys, scale, drop_log);
    default:
      return log_weights<Keep::kTile, Bias>(s, keys, scale, drop_log);
  }
}

template <class Bias, typename T>
void gradient_block(const AttentionParams& p, BackwardScratch<T>& s, Keep keep, int64_t keys) {
  const bool slopes = p.grad_slope != nullptr;
  switch (keep) {
    case Keep::kAll:
      return slopes ? gradient_block<Keep::kAll, Bias, true>(s, keys)
                    : gradient_block<Keep::kAll, Bias, false>(s, keys);
    case Keep::kCausal:
      return slopes ? gradient_block<Keep::kCausal, Bias, true>(s, keys)
                    : gradient_block<Keep::kCausal, Bias, false>(s, keys);
    case Keep::kTile:
      return slopes ? gradient_block<Keep::kTile, Bias, true>(s, keys)
                    : gradient_block<Keep::kTile, Bias, false>(s, keys);
  }
}

/// The three products for a block or tile that holds NaN or infinity: pair by pair, masked pairs
/// not touched.
template <typename T>
void add_gradients_pairwise(const AttentionParams& p, BackwardScratch<T>& s, int64_t keys,
                            const T* k, T* dk, T* dv) {
  const int64_t width = s.rows.width;
  for (int64_t t = 0; t < keys; ++t) {
    for (int64_t r = 0; r < s.rows.rows; ++r) {
      if (s.keep.keep[t * width + r] == 0) {
        continue;
      }
      const T weight = s.scores[t * width + r], ds = s.grad_scores[t * width + r];
      add_scaled(weight, s.go + r * p.v_dim, dv + t * p.v_dim, p.v_dim);
      add_scaled(ds, s.q + r * p.head_dim, dk + t * p.head_dim, p.head_dim);
      for (int64_t d = 0; d < p.head_dim; ++d) {
        s.dq_t[d * width + r] += ds * k[t * p.head_dim + d];
      }
    }
  }
}

/// On which side of the tile a block lies, and the largest key norm from there outwards.
inline double far_norm_of(const AttentionParams& p, int64_t pair, int64_t block, int64_t batch,
                          const TileStats& tile) {
  const bool consecutive = p.q_pos == nullptr && p.k_pos == nullptr;
  const int64_t index = pair * p.key_blocks + block;
  if (consecutive && block_last(p, batch, block) < tile.first) {
    return p.stats.left_max[index];
  }
  if (consecutive && block_first(p, batch, block) > tile.last) {
    return p.stats.right_max[index];
  }
  return std::numeric_limits<double>::infinity();
}

/// The test of need_of for a whole tile, from its statistics alone: cheap enough for every (task,
/// tile).
inline bool tile_needs(const AttentionParams& p, int64_t pair, int64_t block, int64_t batch,
                       const TileStats& tile) {
  const double first = block_first(p, batch, block), last = block_last(p, batch, block);
  if (p.causal && first > tile.last) {
    return false;
  }
  if (!(tile.coefficient >= 0)) {
    return true;
  }
  const double low = first - tile.last, high = last - tile.first;
  const double nearest = low > 0 ? low : high < 0 ? -high : 0.0;
  const double bias = p.bias.upper(tile.coefficient, nearest, nearest);
  return !(tile.reach * p.stats.norm[pair * p.key_blocks + block] + bias < tile.lse + p.skip_log());
}

template <typename S, class Bias>
int64_t backward_tile(const AttentionParams& p, int64_t pair, int64_t first, int64_t tile_index,
                      void* scratch) {
  using T = compute_t<S>;
  Arena arena(scratch);
  BackwardScratch<T> s(p, arena);
  Rows<T>& rows = s.rows;
  const int64_t batch = pair / p.kv_heads;
  const Tiling tiling = Tiling::of(p);
  const TileStats& stats = p.tile_stats[pair * tiling.count + tile_index];
  const GemmFn<T> gemm = gemm_of<T>(p);
  const bool rows_finite = stats.reach < std::numeric_limits<double>::infinity();
  int64_t computed = 0;
  bool begun = false, loaded = false;
  for (int64_t n = 0; n < kTaskBlocks && first + n < p.key_blocks; ++n) {
    const int64_t block = first + n;
    if (!tile_needs(p, pair, block, batch, stats)) {
      continue;
    }
    if (!begun) {
      begun = true;
      rows.begin(p, pair, tiling.at(tile_index));
      for (int64_t r = 0; r < rows.rows; ++r) {
        const int64_t index =
            (batch * p.heads + rows.kv_head * p.group + rows.head(r)) * p.q_len + rows.query(r);
        const T lse = static_cast<const T*>(p.lse_in)[index];
        s.lse[r] =
            lse == -std::numeric_limits<T>::infinity() ? std::numeric_limits<T>::infinity() : lse;
        rows.lse_below[r] = s.lse[r];
        rows.reach[r] = p.reach[index];
      }
    }
    bool possible = true;
    Keep keep = position_keep(p, batch, block, stats.first, possible, stats.last);
    const double norm = p.stats.norm[pair * p.key_blocks + block];
    const Need need = need_of(p, rows, block, norm, far_norm_of(p, pair, block, batch, stats));
    if (!possible || !need.block || !need.beyond) {
      continue;
    }
    const bool finite = rows_finite && norm < std::numeric_limits<double>::infinity();
    if (p.mask != nullptr || keep == Keep::kTile || !finite) {
      s.keep.build(p, rows, block);
      if (!s.keep.any) {
        continue;
      }
      keep = s.keep.all && finite ? Keep::kAll : Keep::kTile;
    }
    if (!loaded) {
      loaded = true;
      load_tile<S>(p, s);
      fill(s.dq_t, T(0), p.head_dim * rows.width);
      fill(s.slope_sum, T(0), rows.width);
    }
    ++computed;

    const int64_t keys = block_keys(p, block), width = rows.width;
    const T *k = s.k + n * kKeyBlock * p.head_dim, *k_t = s.k_t + n * kKeyBlock * p.head_dim;
    const T* v = s.v + n * kKeyBlock * p.v_dim;
    T *dk = s.dk + n * kKeyBlock * p.head_dim, *dv = s.dv + n * kKeyBlock * p.v_dim;
    gemm(kKeyBlock, width, p.head_dim, k, p.head_dim, s.q_t, width, s.scores, width, false);
    relative_keys(p, rows, block, s.rel_key);
    const T drop_log = finite ? static_cast<T>(p.skip_log()) : -std::numeric_limits<T>::infinity();
    if (!log_weights<Bias>(p, s, keep, keys, drop_log)) {
      continue;
    }
    gemm(kKeyBlock, width, p.v_dim, v, p.v_dim, s.go_t, width, s.grad_scores, width, false);
    gradient_block<Bias>(p, s, keep, keys);
    if (!finite) {
      add_gradients_pairwise(p, s, keys, k, dk, dv);
      continue;
    }
    gemm(kKeyBlock, p.v_dim, width, s.scores, width, s.go, p.v_dim, dv, p.v_dim, true);
    gemm(kKeyBlock, p.head_dim, width, s.grad_scores, width, s.q, p.head_dim, dk, p.head_dim, true);
    gemm(p.head_dim, width, kKeyBlock, k_t, kKeyBlock, s.grad_scores, width, s.dq_t, width, true);
  }
  if (loaded && p.grad_slope != nullptr) {
    const int64_t tasks = divide_up(p.key_blocks, kTaskBlocks);
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t head = batch * p.heads + rows.kv_head * p.group + rows.head(r);
      p.grad_slope[head * tasks + first / kTaskBlocks] += static_cast<double>(s.slope_sum[r]);
    }
  }
  return computed;
}

template <typename S>
void backward_add_dq(const AttentionParams& p, int64_t pair, int64_t tile_index, void* scratch) {
  using T = compute_t<S>;
  Arena arena(scratch);
  BackwardScratch<T> s(p, arena);
  Rows<T>& rows = s.rows;
  rows.place(p, pair, Tiling::of(p).at(tile_index));
  const T scale = static_cast<T>(p.scale);
  for (int64_t r0 = 0; r0 < rows.rows; r0 += kRowPad) {
    transpose(s.dq_t + r0, rows.width, p.head_dim, kRowPad, s.staging, p.head_dim);
    for (int64_t r = r0; r < r0 + kRowPad && r < rows.rows; ++r) {
      const int64_t head = rows.kv_head * p.group + rows.head(r);
      const int64_t at = rows.batch * p.grad_q_strides.batch + head * p.grad_q_strides.head +
                         rows.query(r) * p.grad_q_strides.row - p.grad_q_shift;
      T* dq = static_cast<T*>(p.grad_q) + at;
      const T* add = s.staging + (r - r0) * p.head_dim;
      if (p.grad_q_strides.last == 1) {
        add_scaled(scale, add, dq, p.head_dim);
        continue;
      }
      for (int64_t d = 0; d < p.head_dim; ++d) {
        dq[d * p.grad_q_strides.last] += scale * add[d];
      }
    }
  }
}

template <typename S>
void backward_end(const AttentionParams& p, int64_t pair, int64_t first, void* scratch) {
  using T = compute_t<S>;
  Arena arena(scratch);
  BackwardScratch<T> s(p, arena);
  const int64_t batch = pair / p.kv_heads, kv_head = pair % p.kv_heads;
  const T scale = static_cast<T>(p.scale);
  for (int64_t t = 0; t < kTaskBlocks * kKeyBlock && first * kKeyBlock + t < p.k_len; ++t) {
    const int64_t j = first * kKeyBlock + t;
    T* dk = s.dk + t * p.head_dim;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      dk[d] *= scale;
    }
    store_row(dk, row_of<S>(p.grad_k, p.grad_k_strides, batch, kv_head, j), p.grad_k_strides.last,
              p.head_dim);
    store_row(s.dv + t * p.v_dim, row_of<S>(p.grad_v, p.grad_v_strides, batch, kv_head, j),
              p.grad_v_strides.last, p.v_dim);
  }
}

}  // namespace
}  // namespace posenc::attention
