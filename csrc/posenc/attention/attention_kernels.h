#pragma once

// What the host hands to the loops of alibi_attention_simd.cpp: numbers and pointers, no tensor.

#include <c10/core/ScalarType.h>
#include <posenc/attention/tile_gemm.h>
#include <posenc/bias/bias_policy.h>
#include <posenc/core/isa.h>

#include <cmath>
#include <cstdint>

namespace posenc::attention {

/// Keys a block: what is skipped or not, and the block of `key_norms`.
constexpr int64_t kKeyBlock = 64;
/// Query rows a tile, at most.
constexpr int64_t kMaxRows = 64;
/// Rows are padded to whole vectors of every instruction set.
constexpr int64_t kRowPad = 16;
/// Key blocks whose dk and dv one task of the backward makes.
constexpr int64_t kTaskBlocks = 4;
/// Up to this many query rows (of all heads of a group) the keys are read once, row by row, without
/// tiles.
constexpr int64_t kFewRows = 16;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Strides in elements; `row` is the query or key axis, `last` the channel (the key, for a mask).
struct Strides {
  int64_t batch, head, row, last;
};

/// What a pass over the keys finds out about a block of them. Doubles, (batch, kv head, block).
struct KeyStats {
  double* norm;       ///< the largest ‖k‖; infinite where a k or v in the block is not finite
  double* left_max;   ///< the largest norm over this block and all before it
  double* right_max;  ///< the largest norm over this block and all after it
};

/// What the backward knows of a tile before it looks at its rows.
struct TileStats {
  double reach;        ///< the largest |scale|·‖q‖; infinite where a q or dO is not finite
  double lse;          ///< the smallest log-sum-exp; −infinity where one is NaN
  double coefficient;  ///< the smallest of the bias
  double first, last;  ///< the range of the query positions
};

struct AttentionParams {
  int64_t batch, heads, kv_heads, group;  ///< group = heads / kv_heads
  int64_t q_len, k_len, head_dim, v_dim;
  int64_t key_blocks;

  const void *q, *k, *v;
  Strides q_strides, k_strides, v_strides;

  const bool* mask;  ///< true = keep; nullptr: no mask
  Strides mask_strides;

  const double* q_pos;  ///< (batch or 1, q_len); nullptr: i + offset
  const double* k_pos;  ///< (batch or 1, k_len); nullptr: j
  int64_t q_pos_batch, k_pos_batch;
  double offset;
  const double *k_pos_min,
      *k_pos_max;  ///< with k_pos: its range in each block, (batch or 1, key_blocks)
  int64_t k_range_batch;

  bool causal;
  double scale;
  bias::AlibiBias bias;
  double log_epsilon;  ///< log of the softmax mass that a row may lose by skipping; −infinity: skip
                       ///< nothing

  /// \name How ε is shared
  /// A quarter by all keys that are skipped one by one, a quarter by each end that is cut off, a
  /// quarter by the keys whose own scores show that they weigh nothing.
  /// @{
  [[gnu::always_inline]] double skip_log() const {
    return log_epsilon - std::log(4.0 * static_cast<double>(k_len));
  }
  [[gnu::always_inline]] double stop_log() const { return log_epsilon - std::log(4.0); }
  [[gnu::always_inline]] double drop_share() const { return std::exp(log_epsilon) / 4; }
  /// @}

  KeyStats stats;
  GemmFn<float> gemm_f32;
  GemmFn<double> gemm_f64;
  Bf16GemmFn gemm_bf16;  ///< of q and k in the forward; nullptr: they are widened

  /// \name Forward
  /// @{
  void* out;
  Strides out_strides;
  void* lse;  ///< (batch, heads, q_len) contiguous, the compute type
  /// Copies of the keys and values of the (batch, kv head) pairs [first_pair, …) of the running
  /// phase, in the compute type (k with gemm_bf16: bfloat16), zeros past the end. Where k can be
  /// read in place (k_in_place), only the last, short block is copied.
  void* packed_k;  ///< (pair, blocks, kKeyBlock, head_dim); (pair, 1, …) where k is read in place
  void* packed_v;  ///< (pair, blocks, v_dim, kKeyBlock): transposed
  bool k_in_place;
  int64_t first_pair;
  bool keys_known;  ///< few rows: stats are filled, from key_norms
  /// @}

  /// \name Backward
  /// @{
  const void *grad_out, *out_in;
  Strides grad_out_strides, out_in_strides;
  const void* grad_lse;  ///< contiguous as lse, or nullptr
  const void* lse_in;
  void* delta;    ///< (batch, heads, q_len) Σ dO·O − dlse, the compute type
  double* reach;  ///< (batch, heads, q_len) |scale|·‖q‖; infinite where q or dO is not finite
  void *grad_q, *grad_k, *grad_v;
  Strides grad_k_strides, grad_v_strides;
  Strides grad_q_strides;  ///< of grad_q, whose type is the compute type and which starts as zeros
  int64_t grad_q_shift;    ///< elements before grad_q that belong to pairs of earlier phases
  double* grad_slope;      ///< (batch, heads, tasks of a pair), or nullptr
  TileStats* tile_stats;   ///< (batch, kv heads, tiles)
  /// @}
};

inline int64_t padded(int64_t rows) { return divide_up(rows, kRowPad) * kRowPad; }

/// Query rows of one (batch, kv head) that are worked on together: heads [head, head + heads) of
/// the group times queries [query, query + queries). Row r is (head + r / queries, query + r %
/// queries).
struct Tile {
  int64_t head, heads, query, queries;

  int64_t rows() const { return heads * queries; }
};

/// How the rows of one group are cut into tiles: one head each where there are enough queries, else
/// several.
struct Tiling {
  int64_t group, q_len, queries, heads, per_head, count;

  [[gnu::always_inline]] static Tiling of(const AttentionParams& p) {
    const int64_t width = p.head_dim > p.v_dim ? p.head_dim : p.v_dim;
    const int64_t limit = width <= 128 ? kMaxRows : width <= 256 ? kMaxRows / 2 : kMaxRows / 4;
    Tiling t{};
    t.group = p.group;
    t.q_len = p.q_len;
    const int64_t parts = divide_up(p.q_len, limit);
    t.queries = parts == 1 ? p.q_len : padded(divide_up(p.q_len, parts));
    t.per_head = divide_up(p.q_len, t.queries);
    t.heads = t.per_head > 1 ? 1 : limit / t.queries;
    t.heads = t.heads < p.group ? t.heads : p.group;
    t.count = t.per_head * divide_up(p.group, t.heads);
    return t;
  }

  int64_t max_rows() const { return padded(queries * heads); }

  Tile at(int64_t index) const {
    Tile tile{};
    tile.head = index / per_head * heads;
    tile.heads = heads < group - tile.head ? heads : group - tile.head;
    tile.query = index % per_head * queries;
    tile.queries = queries < q_len - tile.query ? queries : q_len - tile.query;
    return tile;
  }
};

/// One step of a walk over the key blocks, from near to far.
struct Visit {
  int32_t block;
  int32_t side;     ///< −1: all its keys before all the queries, 1: behind all, 0: neither
  double far_norm;  ///< the largest key norm from here on, on this side; infinite where that is
                    ///< unknown
};

/// Fetches a position as the operator defines it.
inline double query_position(const AttentionParams& p, int64_t batch, int64_t i) {
  return p.q_pos ? p.q_pos[batch * p.q_pos_batch + i] : static_cast<double>(i) + p.offset;
}
inline double key_position(const AttentionParams& p, int64_t batch, int64_t j) {
  return p.k_pos ? p.k_pos[batch * p.k_pos_batch + j] : static_cast<double>(j);
}

/// The range of the positions of a key block.
inline double block_first(const AttentionParams& p, int64_t batch, int64_t block) {
  return p.k_pos ? p.k_pos_min[batch * p.k_range_batch + block]
                 : static_cast<double>(block * kKeyBlock);
}
inline double block_last(const AttentionParams& p, int64_t batch, int64_t block) {
  const int64_t end = (block + 1) * kKeyBlock < p.k_len ? (block + 1) * kKeyBlock : p.k_len;
  return p.k_pos ? p.k_pos_max[batch * p.k_range_batch + block] : static_cast<double>(end - 1);
}

struct AttentionKernels {
  /// The loops can leave tiles in bfloat16, for gemm_bf16.
  bool takes_bf16_tiles;

  /// Bytes of scratch that one thread needs.
  int64_t (*forward_scratch)(const AttentionParams&);
  int64_t (*few_scratch)(const AttentionParams&);
  int64_t (*backward_scratch)(const AttentionParams&);

  /// Fills stats.norm of one block, and the copies where there is a place for them. v may be
  /// nullptr.
  void (*scan_keys)(const AttentionParams&, int64_t pair, int64_t block, void* scratch);

  /// One tile of the output. Returns how many blocks it computed.
  int64_t (*forward_tile)(const AttentionParams&, int64_t pair, const Tile&, const Visit*,
                          int64_t visits, void* scratch);

  /// All rows of a (batch, kv head) against the visited keys: row maximum, sum and weighted values
  /// (rows × (2 + v_dim), the compute type) for merge_rows. `seed` is the nearest block, whose
  /// scores bound the maximum from below.
  int64_t (*few_rows)(const AttentionParams&, int64_t pair, const Visit*, int64_t visits,
                      int64_t seed, void* partial, void* scratch);
  void (*merge_rows)(const AttentionParams&, int64_t pair, const void* partials, int64_t parts);

  /// delta, reach and tile_stats of one tile.
  void (*backward_rows)(const AttentionParams&, int64_t pair, int64_t tile_index, void* scratch);
  /// Loads the keys of a task (kTaskBlocks blocks from `first`) and clears its gradients.
  void (*backward_begin)(const AttentionParams&, int64_t pair, int64_t first, void* scratch);
  /// Adds one tile's part to dk and dv; its part of dq stays in the scratch. Returns how many
  /// blocks it computed.
  int64_t (*backward_tile)(const AttentionParams&, int64_t pair, int64_t first, int64_t tile_index,
                           void* scratch);
  void (*backward_add_dq)(const AttentionParams&, int64_t pair, int64_t tile_index, void* scratch);
  void (*backward_end)(const AttentionParams&, int64_t pair, int64_t first, void* scratch);
};

/// The loops for one dtype.
struct AttentionKernelTable {
  AttentionKernels f64, f32, bf16, f16;

  const AttentionKernels& of(at::ScalarType dtype) const {
    switch (dtype) {
      case at::kDouble:
        return f64;
      case at::kFloat:
        return f32;
      case at::kBFloat16:
        return bf16;
      default:
        return f16;
    }
  }
};
POSENC_DECLARE_ISA_TABLE(AttentionKernelTable, attention_kernels)

}  // namespace posenc::attention
