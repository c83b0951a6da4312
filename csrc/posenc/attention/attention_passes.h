#pragma once

// Which passes make up the forward and the backward on the device, in which order and shape: what
// the host launches (alibi_attention_kernels.cu) and what the tests run over the same grids. A
// launcher has `template <class Pass> void run(const typename Pass::Arguments&)`.

#include <posenc/attention/attention_backward_device.h>
#include <posenc/attention/attention_forward_device.h>

namespace posenc::attention::device {

// ---- One pass each: its arguments, its grid, its body.

template <class T>
struct GivenNormsPass {
  using Arguments = GivenNorms;
  static constexpr int kBlock = kThreads;
  static GridShape grid(const GivenNorms& p) { return given_grid(p); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const GivenNorms& p) {
    given_norms_body<T>(gpu, p);
  }
};

template <class T>
struct KeyStatsPass {
  using Arguments = Params;
  static constexpr int kBlock = kRowThreads;
  static GridShape grid(const Params& p) { return key_grid(p); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    key_stats_body<T>(gpu, p);
  }
};

template <class T>
struct FarNormsPass {
  using Arguments = Params;
  static constexpr int kBlock = 32;
  static GridShape grid(const Params& p) { return far_grid(p); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    far_norms_body<T>(gpu, p);
  }
};

/// Tile: Fma<…> or Mma<…>.
template <class Tile, class Bias>
struct ForwardPass {
  using Arguments = Params;
  static constexpr int kBlock = Tile::kThreads, kWidth = Tile::kWidth;
  static GridShape grid(const Params& p) { return forward_grid<Tile>(p); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    forward_body<Tile, Bias>(gpu, p);
  }
};

template <class T>
struct MergePass {
  using Arguments = Params;
  static constexpr int kBlock = kRowThreads;
  static GridShape grid(const Params& p) { return merge_grid(p); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    merge_body<T>(gpu, p);
  }
};

template <class T, class Bias>
struct BackwardRowsPass {
  using Arguments = Params;
  static constexpr int kBlock = kRowThreads;
  static GridShape grid(const Params& p) { return rows_grid(p); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    backward_rows_body<T, Bias>(gpu, p);
  }
};

template <class Tile, class Bias>
struct BackwardKeysPass {
  using Arguments = Params;
  static constexpr int kBlock = Tile::kThreads, kWidth = Tile::kWidth;
  static GridShape grid(const Params& p) { return backward_grid<Tile>(p, p.key_blocks); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    backward_keys_body<Tile, Bias>(gpu, p);
  }
};

template <class Tile, class Bias>
struct BackwardQueriesPass {
  using Arguments = Params;
  static constexpr int kBlock = Tile::kThreads, kWidth = Tile::kWidth;
  static GridShape grid(const Params& p) { return backward_grid<Tile>(p, p.tiling.count); }
  template <class Gpu>
  POSENC_HD static void body(const Gpu& gpu, const Params& p) {
    backward_queries_body<Tile, Bias>(gpu, p);
  }
};

// ---- The order of passes

/// How the forward is shared out: the tiles' rows, and the parts into which the keys of a tile are
/// cut where there are too few tiles to fill a device. By shape alone.
inline void plan_forward(Params& p) {
  constexpr int64_t kBlocksEnough = 264, kBlocksWanted = 512, kPartBlocks = 4;
  p.tiling = make_tiling(p.group, p.q_len, p.group * p.q_len <= kFewRows ? kFewRows : kMostRows);
  p.parts = 1;
  const int64_t blocks = p.pairs * p.tiling.count;
  if (blocks > 0 && blocks < kBlocksEnough) {
    const int64_t wanted = core::ceil_div(kBlocksWanted, blocks), most = p.key_blocks / kPartBlocks;
    p.parts = static_cast<int>(wanted < most ? wanted : most);
    p.parts = p.parts < 1 ? 1 : p.parts;
  }
}

inline void plan_backward(Params& p) {
  p.tiling = make_tiling(p.group, p.q_len, kMostRows);
  p.parts = 1;
}

/// Elements of p.partial.
inline int64_t partial_size(const Params& p) {
  return p.parts > 1 ? p.pairs * p.group * p.q_len * p.parts * (2 + p.v_dim) : 0;
}

/// Bytes of p.tile_stats.
inline int64_t stats_bytes(const Params& p) {
  const bool wide = p.dtype == Dtype::kDouble;
  return p.pairs * p.tiling.count *
         static_cast<int64_t>(wide ? sizeof(TileStats<double>) : sizeof(TileStats<float>));
}

/// What p.counts needs room for: the most blocks that a grid may have, forward or backward.
inline int64_t most_blocks(const Params& p) {
  constexpr int64_t kNarrowest = 64;
  return p.pairs * p.tiling.count * p.parts *
         core::ceil_div(p.head_dim > p.v_dim ? p.head_dim : p.v_dim, kNarrowest);
}

inline int slices_of(int channels, int width) { return (channels + width - 1) / width; }

/// Norms, ranges of positions and farthest norms of the key blocks, as far as p has places for
/// them. \param given norms by the caller, or nullptr
template <class T, class Launcher>
void run_keys(const Launcher& launcher, Params p, const double* given) {
  if (given != nullptr) {
    launcher.template run<GivenNormsPass<T>>({given, p.norm, p.pairs * p.key_blocks});
    Params positions = p;
    positions.norm = nullptr;
    if (p.k_pos != nullptr) {
      launcher.template run<KeyStatsPass<T>>(positions);
    }
  } else if (p.norm != nullptr || p.k_pos != nullptr) {
    launcher.template run<KeyStatsPass<T>>(p);
  }
  if (p.left_max != nullptr) {
    launcher.template run<FarNormsPass<T>>(p);
  }
}

template <class Pass, class Launcher>
void run_sliced(const Launcher& launcher, Params p, int channels) {
  p.slices = slices_of(channels, Pass::kWidth);
  launcher.template run<Pass>(p);
}

/// What tensor cores take: half types, and widths whose tiles fit the shared memory of every device
/// that has them (99 KB from 8.6 on); in the backward one slice holds all channels. The rest goes
/// to multiply-adds.
inline bool forward_on_tensor_cores(const Params& p) {
  const bool half = p.dtype == Dtype::kHalf || p.dtype == Dtype::kBFloat16;
  return half && p.head_dim <= 256 && p.v_dim <= 256;
}
inline bool backward_on_tensor_cores(const Params& p) {
  return forward_on_tensor_cores(p) && p.head_dim <= 128 && p.v_dim <= 128;
}

template <class Bias, class Launcher>
void run_forward(const Launcher& launcher, const Params& p) {
  const auto run = [&]<class Tile>() { run_sliced<ForwardPass<Tile, Bias>>(launcher, p, p.v_dim); };
  const bool few = p.group * p.q_len <= kFewRows, narrow = p.v_dim <= 64;
  if (p.dtype == Dtype::kDouble) {
    few ? run.template operator()<Fma<double, 1, 4>>()
        : run.template operator()<Fma<double, 4, 4>>();
  } else if (few) {
    run.template operator()<Fma<float, 1, 8>>();  // memory is the limit
  } else if (forward_on_tensor_cores(p) && launcher.has_tensor_cores()) {
    if (p.dtype == Dtype::kHalf) {
      narrow ? run.template operator()<Mma<Half, 16>>() : run.template operator()<Mma<Half, 32>>();
    } else {
      narrow ? run.template operator()<Mma<BFloat16, 16>>()
             : run.template operator()<Mma<BFloat16, 32>>();
    }
  } else {
    narrow ? run.template operator()<Fma<float, 4, 4>>()
           : run.template operator()<Fma<float, 4, 8>>();
  }
  if (p.parts > 1) {
    if (p.dtype == Dtype::kDouble) {
      launcher.template run<MergePass<double>>(p);
    } else {
      launcher.template run<MergePass<float>>(p);
    }
  }
}

template <class Bias, class Launcher>
void run_backward(const Launcher& launcher, const Params& p) {
  const int most = p.head_dim > p.v_dim ? p.head_dim : p.v_dim;
  const auto run = [&]<class Tile, class KeysTile = Tile>() {
    launcher.template run<BackwardRowsPass<typename Tile::T, Bias>>(p);
    Params keys = p;
    keys.counts = nullptr;
    run_sliced<BackwardKeysPass<KeysTile, Bias>>(launcher, keys, most);
    run_sliced<BackwardQueriesPass<Tile, Bias>>(launcher, p, p.head_dim);
  };
  const bool narrow = most <= 64;
  if (p.dtype == Dtype::kDouble) {
    run.template operator()<Fma<double, 4, 4>>();
  } else if (backward_on_tensor_cores(p) && launcher.has_tensor_cores()) {
    // dk and dv of 128 channels leave a thread registers for half a tile of scores.
    if (p.dtype == Dtype::kHalf) {
      narrow ? run.template operator()<Mma<Half, 16>>()
             : run.template operator()<Mma<Half, 32>, Mma<Half, 32, 8>>();
    } else {
      narrow ? run.template operator()<Mma<BFloat16, 16>>()
             : run.template operator()<Mma<BFloat16, 32>, Mma<BFloat16, 32, 8>>();
    }
  } else {
    narrow ? run.template operator()<Fma<float, 4, 4>>()
           : run.template operator()<Fma<float, 4, 8>>();
  }
}

}  // namespace posenc::attention::device
