#pragma once

// What the CUDA kernels of biased attention share: parameters, the shape of tiles and grids, and
// the tests by which far blocks are left out. Bodies are templates over their context (see
// core/gpu_context.h). No torch and no CUDA header.
//
// The plan is that of the CPU loops (forward_tile.h, backward_tile.h), and so is the proof: with
// score ≤ |scale|·‖q‖·‖k‖ and the bias at the block's nearest distance, each key left out weighs
// less than ε/(4·keys) of its row, or all keys from there on less than ε/4 together. Here the
// test is evaluated in the compute type, and its rounding is added to the bound.

#include <posenc/bias/bias_policy.h>
#include <posenc/core/gpu_context.h>
#include <posenc/core/gpu_types.h>

#include <limits>

/// How often a loop is repeated in code.
#if defined(__CUDA_ARCH__)
#define POSENC_UNROLL_BY_TEXT(text) _Pragma(#text)
#define POSENC_UNROLL_BY(n) POSENC_UNROLL_BY_TEXT(unroll n)
#else
#define POSENC_UNROLL_BY(n)
#endif

namespace posenc::attention::device {

using core::Dtype;
using core::GridShape;

constexpr int kKeys = 64;      ///< keys a block
constexpr int kMostRows = 64;  ///< query rows a tile, at most
constexpr int kFewRows = 16;   ///< up to this many rows in a group (a decode step), a smaller tile
constexpr int kThreads = 256;  ///< of a block that works on a tile
constexpr int kRowThreads = 128;  ///< of the blocks that go over rows, one warp a row

/// A (batch, head, row, channel) tensor. Strides in elements.
struct View {
  const void* data;
  int64_t batch, head, row, last;
  int align;  ///< bytes that may be read at once where a row starts; 0: channels are not adjacent

  template <class T>
  POSENC_HD const T* at(int64_t index) const {
    return static_cast<const T*>(data) + index;
  }
  template <class T>
  POSENC_HD T* mutable_at(int64_t index) const {
    return static_cast<T*>(const_cast<void*>(data)) + index;
  }
  POSENC_HD int64_t offset(int64_t b, int64_t h, int64_t r) const {
    return b * batch + h * head + r * row;
  }
};

/// How the rows of one (batch, kv head) are cut into tiles: queries of one head where there are
/// enough, else several heads of the group. Row r is head `head + r / queries`, query `query + r %
/// queries`.
struct Tiling {
  int64_t q_len, per_head, count;
  int group, queries, heads;

  struct Tile {
    int64_t query;
    int head, heads, queries;

    POSENC_HD int rows() const { return heads * queries; }
  };

  POSENC_HD Tile at(int64_t index) const {
    Tile tile{};
    tile.head = static_cast<int>(index / per_head) * heads;
    tile.heads = heads < group - tile.head ? heads : group - tile.head;
    tile.query = index % per_head * queries;
    tile.queries = static_cast<int>(queries < q_len - tile.query ? queries : q_len - tile.query);
    return tile;
  }
};

inline Tiling make_tiling(int group, int64_t q_len, int limit) {
  Tiling t{};
  t.q_len = q_len;
  t.group = group;
  t.queries = static_cast<int>(q_len < limit ? q_len : limit);
  t.per_head = core::ceil_div(q_len, t.queries);
  t.heads = t.per_head > 1 ? 1 : limit / t.queries;
  t.heads = t.heads < group ? t.heads : group;
  t.count = t.per_head * core::ceil_div(group, t.heads);
  return t;
}

/// What the backward knows of a tile before it looks at its rows. T is the compute type.
template <class T>
struct TileStats {
  T reach;  ///< the largest |scale|·‖q‖; infinite where a q or dO is not finite
  T lse;    ///< the smallest log-sum-exp; +infinity: no row has a key; −infinity: one is NaN
  T coefficient;       ///< the smallest of the bias
  T log_tail;          ///< the largest
  double first, last;  ///< the range of the query positions
};

/// Pointers are to device memory. "T" is the compute type: double for double, float for the rest.
struct Params {
  Dtype dtype;
  int heads, kv_heads, group, head_dim, v_dim;
  int64_t pairs;  ///< batch · kv_heads
  int64_t q_len, k_len, key_blocks;
  View q, k, v;

  const bool* mask;  ///< true = keep; nullptr: no mask
  int64_t mask_batch, mask_head, mask_row, mask_last;
  const double* q_pos;  ///< (batch or 1, q_len); nullptr: i + offset
  const double* k_pos;  ///< (batch or 1, k_len); nullptr: j
  int64_t q_pos_batch, k_pos_batch;
  double offset;
  bool causal;
  double scale;
  bias::AlibiBias bias;
  double skip_log;    ///< log of the share of a row that a key left out may have
  double stop_log;    ///< log of the share of all keys beyond an end
  double drop_share;  ///< share of all keys whose own scores show that they weigh nothing

  /// \name What is known of the key blocks, (pair, key_blocks)
  /// @{
  void* norm;  ///< T, the largest ‖k‖; infinite where a k or v is not finite; nullptr: not known
  void *left_max, *right_max;  ///< T, over this block and all before or after it; or nullptr
  double *k_first, *k_last;    ///< with k_pos: the range of positions in each block
  /// @}

  Tiling tiling;
  int slices;  ///< channels are shared by so many blocks

  /// \name Forward
  /// @{
  View out;
  void* lse;        ///< T, (batch, heads, q_len) contiguous
  int parts;        ///< the keys of a tile are shared by so many blocks
  void* partial;    ///< parts > 1: T, (batch·heads·q_len, parts, 2 + v_dim): maximum, sum, values
  int64_t* counts;  ///< (blocks of the grid, 2): key blocks computed and possible; or nullptr
  /// @}

  /// \name Backward
  /// @{
  View grad_out, grad_q, grad_k, grad_v;
  const void* grad_lse;  ///< T, as lse, or nullptr
  void *delta, *reach;   ///< T, as lse
  void* tile_stats;      ///< TileStats<T>, (pair, tiling.count)
  void* slope_rows;      ///< T, as lse: each row's part of the slope's gradient; or nullptr
  /// @}

  POSENC_HD int64_t row_index(int64_t batch, int64_t head, int64_t i) const {
    return (batch * heads + head) * q_len + i;
  }
};

/// \name Numbers
/// @{
template <class T>
POSENC_HD constexpr T infinity() {
  return static_cast<T>(__builtin_huge_val());
}

template <class T>
POSENC_HD inline T absolute(T x) {
  return x < 0 ? -x : x;
}

/// The larger one; NaN where one is NaN.
template <class T>
POSENC_HD inline T max_nan(T a, T b) {
  return b > a || b != b ? b : a;
}

POSENC_HD inline double exp_of(double x) { return exp(x); }
POSENC_HD inline float exp_of(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);  // its error grows with |x| as the result shrinks: below 1e-7 of the largest
#else
  return expf(x);
#endif
}
POSENC_HD inline double log_of(double x) { return log(x); }
POSENC_HD inline float log_of(float x) { return logf(x); }

/// A bound of a norm from its sum of squares over n channels, which may have lost the last bits of
/// each and all of those that underflowed. Infinite for NaN.
template <class T>
POSENC_HD inline T norm_above(T squares, int n) {
  constexpr T kEpsilon = sizeof(T) == 8 ? T(2.3e-16) : T(1.2e-7);
  constexpr T kTiny = sizeof(T) == 8 ? T(2.3e-308) : T(1.2e-38);
  const T count = static_cast<T>(n);
  const T root = static_cast<T>(sqrt(squares)), lost = static_cast<T>(sqrt(count * kTiny));
  const T norm = root * (1 + (count + 16) * kEpsilon) + lost;
  return norm < infinity<T>() ? norm : infinity<T>();
}
/// @}

/// \name Across a warp, in a fixed order
/// @{
template <class T, class Gpu>
POSENC_HD T sum_lanes(const Gpu& gpu, T x, int lanes = 32) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    x += gpu.shuffle_xor(x, step);
  }
  return x;
}
template <class T, class Gpu>
POSENC_HD T max_lanes(const Gpu& gpu, T x, int lanes = 32) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    x = max_nan(x, gpu.shuffle_xor(x, step));
  }
  return x;
}
template <class T, class Gpu>
POSENC_HD T min_lanes(const Gpu& gpu, T x) {
  return -max_lanes(gpu, -x);
}
template <class Gpu>
POSENC_HD unsigned or_lanes(const Gpu& gpu, unsigned x, int lanes = 32) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    x |= gpu.shuffle_xor(x, step);
  }
  return x;
}
/// @}

/// \name Positions, as the operator defines them
/// @{
template <class Gpu>
POSENC_HD double query_position(const Gpu& gpu, const Params& p, int64_t batch, int64_t i) {
  return p.q_pos != nullptr ? gpu.load(p.q_pos + batch * p.q_pos_batch + i)
                            : static_cast<double>(i) + p.offset;
}
template <class Gpu>
POSENC_HD double key_position(const Gpu& gpu, const Params& p, int64_t batch, int64_t j) {
  return p.k_pos != nullptr ? gpu.load(p.k_pos + batch * p.k_pos_batch + j)
                            : static_cast<double>(j);
}
POSENC_HD inline int block_keys(const Params& p, int64_t block) {
  const int64_t left = p.k_len - block * kKeys;
  return static_cast<int>(left < kKeys ? left : kKeys);
}
template <class Gpu>
POSENC_HD double block_first(const Gpu& gpu, const Params& p, int64_t pair, int64_t block) {
  return p.k_pos != nullptr ? gpu.load(p.k_first + pair * p.key_blocks + block)
                            : static_cast<double>(block * kKeys);
}
template <class Gpu>
POSENC_HD double block_last(const Gpu& gpu, const Params& p, int64_t pair, int64_t block) {
  return p.k_pos != nullptr ? gpu.load(p.k_last + pair * p.key_blocks + block)
                            : static_cast<double>(block * kKeys + block_keys(p, block) - 1);
}
POSENC_HD inline bool consecutive(const Params& p) {
  return p.q_pos == nullptr && p.k_pos == nullptr;
}
/// @}

/// True unless every key at distances `low` … `high` weighs less than exp(log_share) of the row. A
/// comparison with NaN is false, and so is one with an infinite norm: such a block is needed.
/// \param span size of the positions whose differences low and high are
template <class Bias, class T>
POSENC_HD inline bool may_weigh(T reach, T norm, T coefficient, T low, T high, T span, T lse,
                                T log_share) {
  constexpr T kRounding = 16 * (sizeof(T) == 8 ? T(2.3e-16) : T(1.2e-7));
  const T nearest = low > 0 ? low : high < 0 ? -high : T(0);
  const T farthest = high > -low ? high : -low;
  const T score = reach * norm, bias = Bias::upper(coefficient, nearest, farthest);
  const T slack = kRounding * (score + Bias::steepness(coefficient) * span + absolute(lse) +
                               absolute(log_share) + 1);
  return !(score + bias + slack < lse + log_share);
}

/// may_weigh for a whole tile in the backward: from its statistics alone.
template <class Bias, class T, class Gpu>
POSENC_HD bool tile_needs(const Gpu& gpu, const Params& p, int64_t pair, int64_t block,
                          const TileStats<T>& tile) {
  const double first = block_first(gpu, p, pair, block), last = block_last(gpu, p, pair, block);
  if ((p.causal && first > tile.last) || tile.lse == infinity<T>()) {
    return false;
  }
  const T norm = gpu.load(static_cast<const T*>(p.norm) + pair * p.key_blocks + block);
  // Relative to the tile, so that T holds them.
  const T low = static_cast<T>(first - tile.last), high = static_cast<T>(last - tile.first);
  const T span = absolute(low) + absolute(high);
  if (!(tile.coefficient >= 0)) {
    return true;  // the upper bound over a tile's rows would need the farthest distance of each
  }
  if (!may_weigh<Bias>(tile.reach, norm, tile.coefficient, low, high, span, tile.lse,
                       static_cast<T>(p.skip_log))) {
    return false;
  }
  if (!consecutive(p) || (low <= 0 && high >= 0)) {
    return true;
  }
  const T* far = static_cast<const T*>(low > 0 ? p.right_max : p.left_max);
  const T far_norm = gpu.load(far + pair * p.key_blocks + block);
  return may_weigh<Bias>(tile.reach, far_norm, tile.coefficient, low, high, span, tile.lse,
                         static_cast<T>(p.stop_log) - tile.log_tail);
}

}  // namespace posenc::attention::device
