#pragma once

// The backward of biased attention on the device. Three passes: what is known of the rows; dk and
// dv, one block of threads for a block of keys, over the tiles of queries; dq and the slope's
// gradient, one for a tile of queries, over the blocks of keys. Nothing is added up by atomics, so
// the sums are the same each time. See attention_device.h.

#include <posenc/attention/attention_device_gradient.h>
#include <posenc/attention/attention_device_mma.h>

namespace posenc::attention::device {

/// Which of 32 pairs of tile and key block are needed, as bits: each lane looks at one.
template <class Gpu>
POSENC_HD unsigned gather_bits(const Gpu& gpu, bool mine) {
  return or_lanes(gpu, mine ? 1u << gpu.lane() : 0u);
}

/// What both passes over pairs of a tile of queries and a block of keys compute of each: weights P
/// and dS = P·(dP − delta). Rows of the products are queries where `rows_are_queries`, else keys.
template <class Tile, class Bias, bool rows_are_queries, class Gpu>
struct PairScores {
  using T = typename Tile::T;
  using Engine = typename Tile::template Engine<Gpu>;
  static constexpr int M = Tile::M, N = Tile::N;

  const Gpu& gpu;
  const Params& p;
  const Engine& engine;
  const GradientTile<T>& s;
  int64_t block;
  int keys, rows;
  bool restricted, finite;
  int first_query = 0;  ///< of the tile's, where they are the columns

  POSENC_HD int query(int i, int j) const {
    return rows_are_queries ? engine.row(i) : first_query + engine.column(j);
  }
  POSENC_HD int key(int i, int j) const {
    return rows_are_queries ? engine.column(j) : engine.row(i);
  }
  POSENC_HD bool sees(int r, int t) const { return s.sees(gpu, p, block, keys, rows, r, t); }
  POSENC_HD T distance(int i, int j) const {
    return absolute(s.relative_key[key(i, j)] - s.relative[query(i, j)]);
  }

  /// a·bᵀ to weights; bit N·i + j of `allowed` says what is seen. False in all threads where no key
  /// weighs anything: like skipping, but by the scores themselves.
  template <class A, class B>
  POSENC_HD bool weigh(const A& a, const B& b, T (&weights)[M][N], unsigned& allowed) const {
    static_assert(M * N <= 32);
    engine.scores(0, a, b, weights);
    const T drop_log = finite ? static_cast<T>(p.skip_log) : -infinity<T>();
    allowed = ~0u;
    if (restricted) {
      allowed = 0;
      POSENC_UNROLL_BY(1)
      for (int n = 0; n < M * N; ++n) {
        allowed |= sees(query(n / N, n % N), key(n / N, n % N)) ? 1u << n : 0u;
      }
    }
    bool weighs = false;
    POSENC_UNROLL
    for (int j = 0; j < N; ++j) {
      POSENC_UNROLL
      for (int i = 0; i < M; ++i) {
        const int r = query(i, j);
        const T x =
            Bias::add(weights[i][j] * static_cast<T>(p.scale), s.coefficient[r], distance(i, j)) -
            s.lse[r];
        const bool is_seen = (allowed >> (N * i + j) & 1u) != 0;
        weighs = weighs || (is_seen && !(x < drop_log));
        weights[i][j] = is_seen ? exp_of(x) : T(0);
      }
    }
    return any_thread(gpu, s.votes, weighs);
  }

  /// From a·bᵀ = dP.
  template <class A, class B>
  POSENC_HD void differentiate(const A& a, const B& b, const T (&weights)[M][N], unsigned allowed,
                               T (&grads)[M][N]) const {
    engine.scores(1, a, b, grads);
    POSENC_UNROLL
    for (int j = 0; j < N; ++j) {
      POSENC_UNROLL
      for (int i = 0; i < M; ++i) {
        const bool is_seen = (allowed >> (N * i + j) & 1u) != 0;
        grads[i][j] = is_seen ? weights[i][j] * (grads[i][j] - s.delta[query(i, j)]) : T(0);
      }
    }
  }
};

/// The channels of a slice times `factor`, to the rows of the tile that exist.
template <class Tile, class T, class Gpu, class Engine, class RowAt>
POSENC_HD void store_gradient(const Gpu& gpu, const Params& p, const Engine& engine, const View& to,
                              const RowAt& row_at, int rows, int first, int channels, T factor,
                              const T (&values)[Tile::M][Tile::C]) {
  constexpr int kAdjacent = Tile::kAdjacent;
  POSENC_UNROLL
  for (int i = 0; i < Tile::M; ++i) {
    if (engine.row(i) >= rows) {
      continue;
    }
    const int64_t row = row_at(engine.row(i));
    POSENC_UNROLL
    for (int c = 0; c < Tile::C; c += kAdjacent) {
      T pack[kAdjacent];
      POSENC_UNROLL
      for (int n = 0; n < kAdjacent; ++n) {
        pack[n] = factor * values[i][c + n];
      }
      store_channels(gpu, Tile::dtype(p), to, row, first + engine.channel(c), channels, pack);
    }
  }
}

template <class Tile>
GridShape backward_grid(const Params& p, int64_t tiles) {
  return {p.pairs * tiles * p.slices, 1, 1, Tile::kThreads,
          Tile::shared_bytes(p, 2) + GradientTile<typename Tile::T>::bytes()};
}

/// dk and dv of one block of keys, for a slice of the channels of both.
template <class Tile, class Bias, class Gpu>
POSENC_HD void backward_keys_body(const Gpu& gpu, const Params& p) {
  using T = typename Tile::T;
  constexpr int M = Tile::M, N = Tile::N, C = Tile::C;
  static_assert(Tile::kRows == kKeys && kMostRows % Tile::kColumns == 0);
  const typename Tile::template Engine<Gpu> engine(gpu, p, 2);
  int64_t index = gpu.block(0);
  Work w{};
  w.slice = static_cast<int>(index % p.slices);
  index /= p.slices;
  w.set_pair_and_tile(p, index, p.key_blocks);
  const int64_t block = p.key_blocks - 1 - w.tile;  // the first ones first: seen by most queries
  const GradientTile<T> s = GradientTile<T>::at(gpu, engine.end());
  const int keys = block_keys(p, block), first_channel = w.slice * Tile::kWidth;
  const double high = block_last(gpu, p, w.pair, block);
  const bool keys_finite =
      gpu.load(static_cast<const T*>(p.norm) + w.pair * p.key_blocks + block) < infinity<T>();
  const auto k = key_operand(p, w, p.k, p.head_dim, block);
  const auto v = key_operand(p, w, p.v, p.v_dim, block);
  engine.keep(0, k);
  engine.keep(1, v);

  T dk[M][C], dv[M][C];
  POSENC_UNROLL
  for (int i = 0; i < M; ++i) {
    POSENC_UNROLL
    for (int c = 0; c < C; ++c) {
      dk[i][c] = dv[i][c] = 0;
    }
  }
  const auto* stats = static_cast<const TileStats<T>*>(p.tile_stats) + w.pair * p.tiling.count;
  for (int64_t n0 = 0; n0 < p.tiling.count; n0 += 32) {
    const int64_t mine = n0 + gpu.lane();
    bool needs = false;
    if (mine < p.tiling.count) {
      needs = tile_needs<Bias>(gpu, p, w.pair, block, load_stats(gpu, stats + mine));
    }
    unsigned needed = gather_bits(gpu, needs);
    for (int bit = 0; needed != 0; ++bit, needed >>= 1) {
      if ((needed & 1u) == 0) {
        continue;
      }
      const Tiling::Tile tile = p.tiling.at(n0 + bit);
      const TileStats<T> known = load_stats(gpu, stats + n0 + bit);
      const int rows = tile.rows();
      gpu.sync();
      s.load_rows(gpu, p, w, tile);
      s.load_keys(gpu, p, w, block, query_position(gpu, p, w.batch, tile.query));
      gpu.sync();
      const bool finite = keys_finite && known.reach < infinity<T>();
      const bool restricted = p.mask != nullptr || keys < kKeys || rows < kMostRows || !finite ||
                              (p.causal && high > known.first);
      // As many queries at a time as a thread has registers for.
      POSENC_UNROLL_BY(1)
      for (int r0 = 0; r0 < rows; r0 += Tile::kColumns) {
        const PairScores<Tile, Bias, false, Gpu> pair{gpu,  p,    engine,     s,      block,
                                                      keys, rows, restricted, finite, r0};
        const Operand q{p.q, p.head_dim, [&s, r0](int r) { return s.q_offset[r0 + r]; }};
        const Operand grad_out{p.grad_out, p.v_dim,
                               [&s, r0](int r) { return s.grad_offset[r0 + r]; }};
        if (r0 > 0) {
          gpu.sync();
        }
        engine.fetch(0, q, 0);
        engine.fetch(1, grad_out, 0);
        engine.template arrive<1>();
        T weights[M][N], grads[M][N];
        unsigned allowed;
        const bool weighs = pair.weigh(k, q, weights, allowed);
        engine.template arrive<0>();
        if (!weighs) {
          continue;
        }
        const auto touches = [&pair, r0](int t, int r, T) { return pair.sees(r0 + r, t); };
        engine.values(1, weights, grad_out, first_channel, !finite, touches, dv);
        pair.differentiate(v, grad_out, weights, allowed, grads);
        engine.values(0, grads, q, first_channel, !finite, touches, dk);
      }
    }
  }
  const auto out_at = [&](const View& view) {
    return [&p, &w, &view, block](int t) {
      return view.offset(w.batch, w.kv_head, block * kKeys + t);
    };
  };
  store_gradient<Tile>(gpu, p, engine, p.grad_k, out_at(p.grad_k), keys, first_channel, p.head_dim,
                       static_cast<T>(p.scale), dk);
  store_gradient<Tile>(gpu, p, engine, p.grad_v, out_at(p.grad_v), keys, first_channel, p.v_dim,
                       T(1), dv);
}

/// dq of one tile of queries, for a slice of its channels, and each row's part of the slope's
/// gradient.
template <class Tile, class Bias, class Gpu>
POSENC_HD void backward_queries_body(const Gpu& gpu, const Params& p) {
  using T = typename Tile::T;
  constexpr int M = Tile::M, N = Tile::N, C = Tile::C;
  static_assert(Tile::kRows == kMostRows && Tile::kColumns == kKeys);
  const typename Tile::template Engine<Gpu> engine(gpu, p, 2);
  int64_t index = gpu.block(0);
  Work w{};
  w.slice = static_cast<int>(index % p.slices);
  index /= p.slices;
  w.set_pair_and_tile(p, index, p.tiling.count);
  const GradientTile<T> s = GradientTile<T>::at(gpu, engine.end());
  const Tiling::Tile tile = p.tiling.at(w.tile);
  const int rows = tile.rows(), first_channel = w.slice * Tile::kWidth;
  const TileStats<T> known = load_stats(
      gpu, static_cast<const TileStats<T>*>(p.tile_stats) + w.pair * p.tiling.count + w.tile);
  const double base = query_position(gpu, p, w.batch, tile.query);
  s.load_rows(gpu, p, w, tile);
  gpu.sync();
  const Operand q{p.q, p.head_dim, [&s](int r) { return s.q_offset[r]; }};
  const Operand grad_out{p.grad_out, p.v_dim, [&s](int r) { return s.grad_offset[r]; }};
  engine.keep(0, q);
  engine.keep(1, grad_out);

  T dq[M][C], slope[M];
  POSENC_UNROLL
  for (int i = 0; i < M; ++i) {
    slope[i] = 0;
    POSENC_UNROLL
    for (int c = 0; c < C; ++c) {
      dq[i][c] = 0;
    }
  }
  int64_t computed = 0;
  for (int64_t n0 = 0; n0 < p.key_blocks; n0 += 32) {
    const int64_t mine = n0 + gpu.lane();
    bool needs = false;
    if (mine < p.key_blocks) {
      needs = tile_needs<Bias>(gpu, p, w.pair, mine, known);
    }
    unsigned needed = gather_bits(gpu, needs);
    for (int bit = 0; needed != 0; ++bit, needed >>= 1) {
      if ((needed & 1u) == 0) {
        continue;
      }
      const int64_t block = n0 + bit;
      const int keys = block_keys(p, block);
      const bool finite =
          known.reach < infinity<T>() &&
          gpu.load(static_cast<const T*>(p.norm) + w.pair * p.key_blocks + block) < infinity<T>();
      const bool restricted = p.mask != nullptr || keys < kKeys || rows < kMostRows || !finite ||
                              (p.causal && block_last(gpu, p, w.pair, block) > known.first);
      const auto k = key_operand(p, w, p.k, p.head_dim, block);
      const auto v = key_operand(p, w, p.v, p.v_dim, block);
      gpu.sync();
      s.load_keys(gpu, p, w, block, base);
      engine.fetch(0, k, 0);
      engine.fetch(1, v, 0);
      engine.template arrive<1>();
      ++computed;
      const PairScores<Tile, Bias, true, Gpu> pair{gpu,  p,    engine,     s,     block,
                                                   keys, rows, restricted, finite};
      T weights[M][N], grads[M][N];
      unsigned allowed;
      const bool weighs = pair.weigh(q, k, weights, allowed);
      engine.template arrive<0>();
      if (!weighs) {
        continue;
      }
      pair.differentiate(grad_out, v, weights, allowed, grads);
      if (p.slope_rows != nullptr) {
        POSENC_UNROLL
        for (int i = 0; i < M; ++i) {
          POSENC_UNROLL
          for (int j = 0; j < N; ++j) {
            slope[i] += grads[i][j] * Bias::grad(pair.distance(i, j));
          }
        }
      }
      engine.values(
          0, grads, k, first_channel, !finite, [&pair](int r, int t, T) { return pair.sees(r, t); },
          dq);
    }
  }
  store_gradient<Tile>(
      gpu, p, engine, p.grad_q,
      [&](int r) {
        const RowPlace place = place_of(p, w, tile, r);
        return p.grad_q.offset(w.batch, place.head, place.query);
      },
      rows, first_channel, p.head_dim, static_cast<T>(p.scale), dq);
  if (p.slope_rows != nullptr && w.slice == 0) {
    POSENC_UNROLL
    for (int i = 0; i < M; ++i) {
      const T sum = sum_lanes(gpu, slope[i], Tile::kLanes);
      if (engine.lane() == 0 && engine.row(i) < rows) {
        const RowPlace place = place_of(p, w, tile, engine.row(i));
        gpu.store(static_cast<T*>(p.slope_rows) + p.row_index(w.batch, place.head, place.query),
                  sum);
      }
    }
  }
  if (p.counts != nullptr) {
    store_counts(gpu, p, w, 0, p.key_blocks, known.last, computed);
  }
}

}  // namespace posenc::attention::device
