#pragma once

// What is known of the key blocks before a tile looks at them, and the order in which a tile
// visits them. See attention_device.h.

#include <posenc/attention/attention_device_tile.h>

namespace posenc::attention::device {

inline GridShape key_grid(const Params& p) {
  return {p.pairs * p.key_blocks, 1, 1, kRowThreads, kRowThreads / 32 * 16};
}

/// One block of keys: the largest norm, and the range of the positions where they are given. One
/// warp a key.
template <class T, class Gpu>
POSENC_HD void key_stats_body(const Gpu& gpu, const Params& p) {
  const int64_t pair = gpu.block(0) / p.key_blocks, block = gpu.block(0) % p.key_blocks;
  const int64_t batch = pair / p.kv_heads, head = pair % p.kv_heads;
  const int warps = gpu.threads() / 32, keys = block_keys(p, block);
  constexpr int kPack = kPackOf<T>;
  T most = 0;
  if (p.norm != nullptr) {
    for (int t = gpu.warp(); t < keys; t += warps) {
      const int64_t key = block * kKeys + t;
      T squares = 0, sums = 0;  // sums: of zeros, or NaN
      for (int c = gpu.lane() * kPack; c < p.head_dim; c += 32 * kPack) {
        T values[kPack];
        load_channels(gpu, p.dtype, p.k, p.k.offset(batch, head, key), c, p.head_dim, values);
        for (int n = 0; n < kPack; ++n) {
          squares += values[n] * values[n];
        }
      }
      for (int c = gpu.lane() * kPack; c < p.v_dim; c += 32 * kPack) {
        T values[kPack];
        load_channels(gpu, p.dtype, p.v, p.v.offset(batch, head, key), c, p.v_dim, values);
        for (int n = 0; n < kPack; ++n) {
          sums += values[n] - values[n];
        }
      }
      const T norm = norm_above(sum_lanes(gpu, squares), p.head_dim);
      most = max_nan(most, sum_lanes(gpu, sums) == 0 ? norm : infinity<T>());
    }
    T* shared = gpu.template shared<T>(0);
    if (gpu.lane() == 0) {
      shared[gpu.warp()] = most;
    }
    gpu.sync();
    if (gpu.thread() == 0) {
      for (int w = 0; w < warps; ++w) {
        most = max_nan(most, shared[w]);
      }
      gpu.store(static_cast<T*>(p.norm) + gpu.block(0), most);
    }
  }
  if (p.k_pos != nullptr && gpu.warp() == 0) {
    double low = infinity<double>(), high = -infinity<double>();
    for (int t = gpu.lane(); t < keys; t += 32) {
      const double position = key_position(gpu, p, batch, block * kKeys + t);
      low = position < low ? position : low;
      high = position > high ? position : high;
    }
    low = min_lanes(gpu, low);
    high = max_lanes(gpu, high);
    if (gpu.lane() == 0) {
      gpu.store(p.k_first + gpu.block(0), low);
      gpu.store(p.k_last + gpu.block(0), high);
    }
  }
}

inline GridShape far_grid(const Params& p) { return {p.pairs, 1, 1, 32, 0}; }

/// left_max and right_max of a pair, by one warp.
template <class T, class Gpu>
POSENC_HD void far_norms_body(const Gpu& gpu, const Params& p) {
  const int64_t first = gpu.block(0) * p.key_blocks;
  const T* norm = static_cast<const T*>(p.norm) + first;
  for (int side = 0; side < 2; ++side) {
    T* to = static_cast<T*>(side == 0 ? p.left_max : p.right_max) + first;
    T before = 0;
    for (int64_t n0 = 0; n0 < p.key_blocks; n0 += 32) {
      const int64_t n = n0 + gpu.lane();
      const int64_t block = side == 0 ? n : p.key_blocks - 1 - n;
      T most = n < p.key_blocks ? gpu.load(norm + block) : T(0);
      for (int step = 1; step < 32; step *= 2) {
        const T other = gpu.shuffle(most, gpu.lane() - step);
        most = gpu.lane() >= step ? max_nan(most, other) : most;
      }
      most = max_nan(most, before);
      if (n < p.key_blocks) {
        gpu.store(to + block, most);
      }
      before = gpu.shuffle(most, 31);
    }
  }
}

/// Norms that the caller gave, as bounds of the compute type: what is negative or NaN is no bound.
struct GivenNorms {
  const double* given;
  void* norm;
  int64_t count;
};

inline GridShape given_grid(const GivenNorms& p) {
  return {core::ceil_div(p.count, kThreads), 1, 1, kThreads, 0};
}

template <class T, class Gpu>
POSENC_HD void given_norms_body(const Gpu& gpu, const GivenNorms& p) {
  const int64_t n = gpu.block(0) * int64_t{gpu.threads()} + gpu.thread();
  if (n < p.count) {
    const double norm = gpu.load(p.given + n);
    T bound = static_cast<T>(norm);
    if (static_cast<double>(bound) < norm) {
      bound = bound * (1 + T(1.2e-7)) + T(1.2e-38);
    }
    gpu.store(static_cast<T*>(p.norm) + n, norm >= 0 ? bound : infinity<T>());
  }
}

/// The key blocks that a tile visits, from near to far, on both sides in turn. The same in every
/// thread of a block.
struct Walk {
  int64_t begin, end;   ///< the blocks of this part
  int64_t left, right;  ///< the next ones on either side
  bool turn;

  /// \param first, last range of the query positions
  template <class Gpu>
  POSENC_HD static Walk from(const Gpu& gpu, const Params& p, int64_t pair, double first,
                             double last, int64_t begin, int64_t end) {
    Walk w{begin, end, 0, 0, false};
    const int64_t nearest = nearest_block(gpu, p, pair, first, last);
    w.left = nearest < end ? nearest : end - 1;
    w.left = w.left < begin - 1 ? begin - 1 : w.left;
    w.right = w.left + 1;
    if (p.causal && consecutive(p)) {
      w.right = end;  // keys behind the last query
    }
    return w;
  }

  /// The block that holds the last query's position, or comes closest to it.
  template <class Gpu>
  POSENC_HD static int64_t nearest_block(const Gpu& gpu, const Params& p, int64_t pair,
                                         double first, double last) {
    const int64_t blocks = p.key_blocks;
    if (consecutive(p)) {
      const double block = floor(last / kKeys);
      return block < 0                              ? 0
             : block >= static_cast<double>(blocks) ? blocks - 1
                                                    : static_cast<int64_t>(block);
    }
    double best = infinity<double>();
    int64_t where = 0;
    for (int64_t block = gpu.lane(); block < blocks; block += 32) {
      const double low = block_first(gpu, p, pair, block) - last,
                   high = first - block_last(gpu, p, pair, block);
      double distance = low > high ? low : high;
      distance = distance > 0 ? distance : 0;
      if (distance < best || (distance == best && block > where)) {
        best = distance;
        where = block;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const double other = gpu.shuffle_xor(best, step);
      const int64_t there = gpu.shuffle_xor(where, step);
      if (other < best || (other == best && there > where)) {
        best = other;
        where = there;
      }
    }
    return where;
  }

  POSENC_HD bool next(int64_t& block) {
    const bool has_left = left >= begin, has_right = right < end;
    if (!has_left && !has_right) {
      return false;
    }
    const bool go_right = has_right && (!has_left || turn);
    turn = !turn;
    block = go_right ? right++ : left--;
    return true;
  }

  /// Nothing farther on a side matters.
  POSENC_HD void stop(int side) {
    if (side < 0) {
      left = begin - 1;
    } else {
      right = end;
    }
  }
};

}  // namespace posenc::attention::device
