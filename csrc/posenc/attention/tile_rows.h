#pragma once

// The rows of a tile: what the loops keep of each query row, which keys it may see, and whether it
// needs a block. For *_simd.cpp only.

#include <posenc/attention/attention_kernels.h>
#include <posenc/core/bf16_pairs.h>
#include <posenc/core/vec_tools.h>

namespace posenc::attention {
namespace {

using namespace core;  // vector tools

template <typename T>
const T* row_of(const void* base, const Strides& s, int64_t batch, int64_t head, int64_t row) {
  return static_cast<const T*>(base) + batch * s.batch + head * s.head + row * s.row;
}

template <typename T>
T* row_of(void* base, const Strides& s, int64_t batch, int64_t head, int64_t row) {
  return static_cast<T*>(base) + batch * s.batch + head * s.head + row * s.row;
}

template <typename T>
GemmFn<T> gemm_of(const AttentionParams& p) {
  if constexpr (std::is_same_v<T, double>) {
    return p.gemm_f64;
  } else {
    return p.gemm_f32;
  }
}

/// Whether tiles of S may stay as they are for gemm_bf16: the processors that have such a product
/// have AVX-512.
template <typename S>
#if defined(CPU_CAPABILITY_AVX512)
constexpr bool kBf16Tiles = std::is_same_v<S, c10::BFloat16>;
#else
constexpr bool kBf16Tiles = false;
#endif

/// The keys of a block that exist.
inline int64_t block_keys(const AttentionParams& p, int64_t block) {
  const int64_t left = p.k_len - block * kKeyBlock;
  return left < kKeyBlock ? left : kKeyBlock;
}

/// A tile's rows as arrays. Rows [rows, width) are padding: zeros, never needed, never written out.
template <typename T>
struct Rows {
  int64_t batch, kv_head;
  Tile tile;
  int64_t rows, width;
  double base;          ///< positions in the loops are relative to this one, so that T holds them
  double* position;     ///< absolute
  double* coefficient;  ///< of the bias
  double* reach;        ///< |scale|·‖q‖: a score is at most this times ‖k‖
  double* lse_below;    ///< what the row's log-sum-exp is at least: skipping compares with it
  double* log_tail;
  T *rel_position, *coef;
  bool finite_bias;  ///< positions follow each other and no slope is infinite or NaN
  double longest;    ///< the largest ‖q‖; infinite where one is not finite

  int64_t head(int64_t r) const { return tile.head + r / tile.queries; }
  int64_t query(int64_t r) const { return tile.query + r % tile.queries; }

  void take(Arena& arena, int64_t width) {
    position = arena.take<double>(width);
    coefficient = arena.take<double>(width);
    reach = arena.take<double>(width);
    lse_below = arena.take<double>(width);
    log_tail = arena.take<double>(width);
    rel_position = arena.take<T>(width);
    coef = arena.take<T>(width);
  }

  void place(const AttentionParams& p, int64_t pair, const Tile& t) {
    batch = pair / p.kv_heads;
    kv_head = pair % p.kv_heads;
    tile = t;
    rows = t.rows();
    width = padded(rows);
  }

  void begin(const AttentionParams& p, int64_t pair, const Tile& t) {
    place(p, pair, t);
    base = query_position(p, batch, t.query);
    finite_bias = p.q_pos == nullptr && p.k_pos == nullptr;
    for (int64_t r = 0; r < width; ++r) {
      const int64_t row = r < rows ? r : 0;
      position[r] = query_position(p, batch, query(row));
      coefficient[r] = p.bias.coefficient(batch, kv_head * p.group + head(row));
      log_tail[r] = r > 0 && coefficient[r] == coefficient[r - 1] ? log_tail[r - 1]
                                                                  : p.bias.log_tail(coefficient[r]);
      rel_position[r] = static_cast<T>(position[r] - base);
      coef[r] = static_cast<T>(coefficient[r]);
      finite_bias = finite_bias && std::isfinite(coef[r]);
    }
  }
};

/// Which rows cannot do without a block, and whether all blocks beyond it can be left out as well.
struct Need {
  bool block, beyond;
};

/// The test of design and proof: with score ≤ reach·norm and the bias at the block's nearest
/// distance, each skipped key weighs less than ε/(4·keys) of the row's sum, or all keys from here
/// on less than ε/4 together. A comparison with NaN is false, and so is one with an infinite norm:
/// such a block is computed. `open` rows have seen no key yet; their need is not decided here.
template <typename T>
Need need_of(const AttentionParams& p, const Rows<T>& rows, int64_t block, double norm,
             double far_norm) {
  const double first = block_first(p, rows.batch, block), last = block_last(p, rows.batch, block);
  const double skip_log = p.skip_log();
  const double stop_log = p.stop_log();
  int64_t need = 0, beyond = 0;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const double low = first - rows.position[r], high = last - rows.position[r];
    const double nearest = low > 0 ? low : high < 0 ? -high : 0.0;
    const double farthest = high > -low ? high : -low;
    const double bias = p.bias.upper(rows.coefficient[r], nearest, farthest);
    const double most = rows.lse_below[r];
    need += !(rows.reach[r] * norm + bias < most + skip_log);
    beyond += !(rows.reach[r] * far_norm + bias < most + stop_log - rows.log_tail[r]);
  }
  return {need != 0, beyond != 0};
}

/// How a block's keys are restricted.
enum class Keep {
  kAll,     ///< every row sees every key
  kCausal,  ///< key position ≤ query position, both consecutive
  kTile,    ///< as the keep tile says
};

inline bool is_allowed(const AttentionParams& p, int64_t batch, int64_t head, int64_t i,
                       int64_t j) {
  if (p.causal && !(key_position(p, batch, j) <= query_position(p, batch, i))) {
    return false;
  }
  return p.mask == nullptr || *(p.mask + batch * p.mask_strides.batch + head * p.mask_strides.head +
                                i * p.mask_strides.row + j * p.mask_strides.last);
}

/// Writes 1 where row r may see key t, 0 elsewhere, as (kKeyBlock × width), and tells how the block
/// is restricted. `any` counts allowed pairs; `any_row[r]` says whether a row has one.
template <typename T>
struct KeepTile {
  T* keep;
  bool* any_row;
  bool any, all;

  void take(Arena& arena, int64_t width) {
    keep = arena.take<T>(kKeyBlock * width);
    any_row = arena.take<bool>(width);
  }

  void build(const AttentionParams& p, const Rows<T>& rows, int64_t block) {
    const int64_t keys = block_keys(p, block), first = block * kKeyBlock;
    any = false;
    all = keys == kKeyBlock;
    fill(keep, T(0), kKeyBlock * rows.width);
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t head = rows.kv_head * p.group + rows.head(r), i = rows.query(r);
      const bool* mask = p.mask == nullptr
                             ? nullptr
                             : p.mask + rows.batch * p.mask_strides.batch +
                                   head * p.mask_strides.head + i * p.mask_strides.row +
                                   first * p.mask_strides.last;
      int64_t count = 0;
      for (int64_t t = 0; t < keys; ++t) {
        bool allowed = mask == nullptr || mask[t * p.mask_strides.last];
        allowed =
            allowed && (!p.causal || key_position(p, rows.batch, first + t) <= rows.position[r]);
        keep[t * rows.width + r] = static_cast<T>(allowed);
        count += allowed;
      }
      any_row[r] = count != 0;
      any = any || count != 0;
      all = all && count == keys;
    }
  }
};

/// The restriction as far as positions tell it, without looking at a mask.
inline Keep position_keep(const AttentionParams& p, int64_t batch, int64_t block,
                          double first_query, bool& possible, double last_query) {
  possible = true;
  if (!p.causal) {
    return Keep::kAll;
  }
  possible = block_first(p, batch, block) <= last_query;
  if (block_last(p, batch, block) <= first_query) {
    return Keep::kAll;
  }
  return p.k_pos == nullptr && p.q_pos == nullptr ? Keep::kCausal : Keep::kTile;
}

/// The key positions of a block, relative to the tile's base; those past the end repeat the last
/// one.
template <typename T>
void relative_keys(const AttentionParams& p, const Rows<T>& rows, int64_t block, T* rel) {
  const int64_t first = block * kKeyBlock;
  for (int64_t t = 0; t < kKeyBlock; ++t) {
    const int64_t j = first + t < p.k_len ? first + t : p.k_len - 1;
    rel[t] = static_cast<T>(key_position(p, rows.batch, j) - rows.base);
  }
}

/// A block of k or v as rows of T, zeros past the end.
template <typename S, typename T>
void load_block(const void* base, const Strides& strides, int64_t batch, int64_t kv_head,
                int64_t block, int64_t keys, int64_t channels, T* rows) {
  const S* src = row_of<S>(base, strides, batch, kv_head, block * kKeyBlock);
  for (int64_t t = 0; t < keys; ++t) {
    load_row(src + t * strides.row, strides.last, rows + t * channels, channels);
  }
  fill(rows + keys * channels, T(0), (kKeyBlock - keys) * channels);
}

/// True where the loops may read rows of the tensor in place: T already, channels next to each
/// other.
template <typename S>
bool readable_in_place(const Strides& strides, int64_t channels) {
  return std::is_same_v<S, compute_t<S>> && strides.last == 1 && strides.row >= channels;
}

template <typename T>
bool all_finite(const T* x, int64_t n) {
  Vec<T> sums(0);  // of zeros, or NaN
  int64_t i = 0;
  for (; i + Vec<T>::size() <= n; i += Vec<T>::size()) {
    const Vec<T> v = Vec<T>::loadu(x + i);
    sums = sums + (v - v);
  }
  T sum = 0;
  for (; i < n; ++i) {
    sum += x[i] - x[i];
  }
  return sum_lanes(sums) + sum == 0;
}

}  // namespace
}  // namespace posenc::attention
