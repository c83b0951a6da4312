#pragma once

// The forward of one tile. Scores are kept transposed, (key × row): rows lie along the vector
// lanes, so maximum and sum of a row need no shuffles, and what differs from row to row (position,
// slope) is a vector. For *_simd.cpp only.

#include <posenc/attention/tile_rows.h>

namespace posenc::attention {
namespace {

template <typename T>
struct ForwardScratch {
  Rows<T> rows;
  KeepTile<T> keep;
  T *q_t, *scores, *out_t, *rel_key, *row_max, *row_sum, *dropped, *correction, *staging;
  c10::BFloat16* paired_q = nullptr;  ///< with gemm_bf16: q_t in pairs of rows, as its B

  ForwardScratch(const AttentionParams& p, Arena& arena) {
    const int64_t width = Tiling::of(p).max_rows(),
                  channels = p.head_dim > p.v_dim ? p.head_dim : p.v_dim;
    rows.take(arena, width);
    keep.take(arena, width);
    q_t = arena.take<T>(p.head_dim * width);
    scores = arena.take<T>(kKeyBlock * width);
    out_t = arena.take<T>(p.v_dim * width);
    rel_key = arena.take<T>(kKeyBlock);
    row_max = arena.take<T>(width);
    row_sum = arena.take<T>(width);
    dropped = arena.take<T>(width);
    correction = arena.take<T>(width);
    staging = arena.take<T>(kRowPad * channels);
    if (p.gemm_bf16 != nullptr) {
      paired_q = arena.take<c10::BFloat16>(p.head_dim * width);
    }
  }
};

/// What a block did to the running maxima: whether older weights must be multiplied by a correction
/// other than 1, and whether one of its keys weighs anything.
struct BlockEffect {
  bool changed, weighs;
};

/// Scores of one vector of rows become scores with their bias, −infinity where a key is not seen;
/// returns their maxima.
template <Keep keep, bool kPlain, class Bias, typename T>
Vec<T> add_bias(int64_t keys, int64_t width, const Vec<T>& factor, const Vec<T>& coef,
                const Vec<T>& position, const T* rel_key, const T* keep_tile, T* scores) {
  const Vec<T> nothing(-std::numeric_limits<T>::infinity()), zero(0);
  Vec<T> most = nothing;
  for (int64_t t = 0; t < keys; ++t) {
    T* at = scores + t * width;
    const Vec<T> key(rel_key[t]);
    Vec<T> x = Bias::add(Vec<T>::loadu(at) * factor, coef, (key - position).abs());
    if constexpr (keep == Keep::kCausal) {
      x = Vec<T>::blendv(nothing, x, key <= position);
    } else if constexpr (keep == Keep::kTile) {
      x = Vec<T>::blendv(nothing, x, Vec<T>::loadu(keep_tile + t * width) > zero);
    }
    x.store(at);
    most = kPlain ? larger(most, x) : at::vec::maximum(most, x);
  }
  return most;
}

/// One block of keys into running maximum and sum: scores become weights relative to the new
/// maximum, and correction[r] is what older weights of the row must be multiplied with.
///
/// \param share of a row's sum that the keys may weigh in all which count as nothing; dropped[r] is
/// what they weigh so far, relative to the maximum. 0: every key counts. A NaN never counts as
/// nothing.
template <Keep keep, bool kPlain, class Bias, typename T>
BlockEffect softmax_block(ForwardScratch<T>& s, int64_t keys, T scale, T share) {
  const Rows<T>& rows = s.rows;
  const int64_t width = rows.width;
  const Vec<T> nothing(-std::numeric_limits<T>::infinity()), zero(0), one(1), factor(scale);
  Vec<T> changed(0);
  bool weighs = false;
  for (int64_t r = 0; r < width; r += Vec<T>::size()) {
    T* const scores = s.scores + r;
    const Vec<T> old_max = Vec<T>::loadu(s.row_max + r), old_sum = Vec<T>::loadu(s.row_sum + r);
    const Vec<T> block_max = add_bias<keep, kPlain, Bias>(
        keys, width, factor, Vec<T>::loadu(rows.coef + r), Vec<T>::loadu(rows.rel_position + r),
        s.rel_key, s.keep.keep + r, scores);
    const Vec<T> lost = at::vec::fmadd(exp_weight(block_max - old_max),
                                       Vec<T>(static_cast<T>(keys)), Vec<T>::loadu(s.dropped + r));
    // A true lane is all ones: without a zero lane, every row of the vector can do without the
    // block.
    if ((lost < old_sum * Vec<T>(share)).zero_mask() == 0) {
      for (int64_t t = 0; t < keys; ++t) {
        zero.store(scores + t * width);
      }
      lost.store(s.dropped + r);
      one.store(s.correction + r);
      continue;
    }
    weighs = true;
    const Vec<T> new_max = at::vec::maximum(old_max, block_max);
    const Vec<T> shift = Vec<T>::blendv(new_max, zero, new_max == nothing);
    const Vec<T> fix = Vec<T>::blendv(exp_weight(old_max - shift), one, old_max == new_max);
    Vec<T> sum(0);
    for (int64_t t = 0; t < keys; ++t) {
      const Vec<T> weight = exp_weight(Vec<T>::loadu(scores + t * width) - shift);
      weight.store(scores + t * width);
      sum = sum + weight;
    }
    at::vec::fmadd(old_sum, fix, sum).store(s.row_sum + r);
    new_max.store(s.row_max + r);
    fix.store(s.correction + r);
    changed = changed | (fix != one);
  }
  fill(s.scores + keys * width, T(0), (kKeyBlock - keys) * width);
  return {changed.zero_mask() != (1 << Vec<T>::size()) - 1, weighs};
}

/// `plain`: no score can be NaN.
template <bool plain, class Bias, typename T>
BlockEffect softmax_block(ForwardScratch<T>& s, Keep keep, int64_t keys, T scale, T share) {
  switch (keep) {
    case Keep::kAll:
      return softmax_block<Keep::kAll, plain, Bias>(s, keys, scale, share);
    case Keep::kCausal:
      return softmax_block<Keep::kCausal, plain, Bias>(s, keys, scale, share);
    case Keep::kTile:
      return softmax_block<Keep::kTile, plain, Bias>(s, keys, scale, share);
  }
  return {};
}

/// out_t (v_dim × width): each row times its correction.
template <typename T>
void rescale(T* out_t, const T* correction, int64_t channels, int64_t width) {
  for (int64_t d = 0; d < channels; ++d) {
    for (int64_t r = 0; r < width; r += Vec<T>::size()) {
      (Vec<T>::loadu(out_t + d * width + r) * Vec<T>::loadu(correction + r))
          .store(out_t + d * width + r);
    }
  }
}

/// weights · v for a block that holds NaN or infinity: pair by pair, so that a masked value is not
/// even multiplied by 0.
template <typename T>
void add_values_pairwise(const Rows<T>& rows, int64_t keys, int64_t v_dim, const T* keep_tile,
                         const T* weights, const T* v_t, T* out_t) {
  const int64_t width = rows.width;
  for (int64_t t = 0; t < keys; ++t) {
    for (int64_t r = 0; r < rows.rows; ++r) {
      if (keep_tile[t * width + r] == 0) {
        continue;
      }
      for (int64_t d = 0; d < v_dim; ++d) {
        out_t[d * width + r] += weights[t * width + r] * v_t[d * kKeyBlock + t];
      }
    }
  }
}

/// Loads the queries, transposed, and their norms.
template <typename S, typename T>
void load_queries(const AttentionParams& p, Rows<T>& rows, T* staging, T* q_t) {
  rows.longest = 0;
  for (int64_t r0 = 0; r0 < rows.width; r0 += kRowPad) {
    for (int64_t r = r0; r < r0 + kRowPad; ++r) {
      T* row = staging + (r - r0) * p.head_dim;
      if (r >= rows.rows) {
        fill(row, T(0), p.head_dim);
        rows.reach[r] = 0;
        continue;
      }
      const S* q = row_of<S>(p.q, p.q_strides, rows.batch, rows.kv_head * p.group + rows.head(r),
                             rows.query(r));
      load_row(q, p.q_strides.last, row, p.head_dim);
      const double norm = norm_above(row, p.head_dim);
      rows.reach[r] = std::abs(p.scale) * norm;
      rows.longest = norm > rows.longest ? norm : rows.longest;
    }
    transpose(staging, p.head_dim, kRowPad, p.head_dim, q_t + r0, rows.width);
  }
}

/// True where a row without weight had a key after all (scores of −infinity): its output is NaN, as
/// softmax has it.
inline bool has_key(const AttentionParams& p, int64_t batch, int64_t head, int64_t i) {
  for (int64_t j = 0; j < p.k_len; ++j) {
    if (is_allowed(p, batch, head, i, j)) {
      return true;
    }
  }
  return false;
}

/// Output and log-sum-exp of one row from its unnormalised values.
template <typename S, typename T>
void write_row(const AttentionParams& p, int64_t batch, int64_t head, int64_t i, T max, T sum,
               T* values) {
  T inverse = 1 / sum, lse = max + std::log(sum);
  if (sum == 0) {
    const bool nan = has_key(p, batch, head, i);
    inverse = nan ? std::numeric_limits<T>::quiet_NaN() : T(0);
    lse = nan ? inverse : -std::numeric_limits<T>::infinity();
  }
  for (int64_t d = 0; d < p.v_dim; ++d) {
    values[d] = sum == 0 ? inverse : values[d] * inverse;
  }
  store_row(values, row_of<S>(p.out, p.out_strides, batch, head, i), p.out_strides.last, p.v_dim);
  static_cast<T*>(p.lse)[(batch * p.heads + head) * p.q_len + i] = lse;
}

template <typename S, typename T>
void store_tile(const AttentionParams& p, ForwardScratch<T>& s) {
  const Rows<T>& rows = s.rows;
  for (int64_t r0 = 0; r0 < rows.rows; r0 += kRowPad) {
    transpose(s.out_t + r0, rows.width, p.v_dim, kRowPad, s.staging, p.v_dim);
    for (int64_t r = r0; r < r0 + kRowPad && r < rows.rows; ++r) {
      write_row<S>(p, rows.batch, rows.kv_head * p.group + rows.head(r), rows.query(r),
                   s.row_max[r], s.row_sum[r], s.staging + (r - r0) * p.v_dim);
    }
  }
}

/// q_t (channel × row) in bfloat16, pairs of channels next to each other, as gemm_bf16 has its B.
#if defined(CPU_CAPABILITY_AVX512)
inline void pair_queries(const float* q_t, int64_t channels, int64_t width, c10::BFloat16* paired) {
  for (int64_t d = 0; d < channels; d += 2) {
    for (int64_t r = 0; r < width; r += Vec<float>::size()) {
      Bf16Pairs::store(paired + d * width + 2 * r,
                       Bf16Pairs::join_any(Vec<float>::loadu(q_t + d * width + r),
                                           Vec<float>::loadu(q_t + (d + 1) * width + r)));
    }
  }
}
#endif

/// What the rows' log-sum-exp is at least. True where a row has seen no key yet: its maximum is
/// −infinity, and any block may be its own.
template <typename T>
bool update_lse_below(ForwardScratch<T>& s) {
  int64_t open = 0;
  for (int64_t r = 0; r < s.rows.rows; ++r) {
    s.rows.lse_below[r] = static_cast<double>(s.row_max[r]) + log_below(s.row_sum[r]);
    open += s.row_max[r] == -std::numeric_limits<T>::infinity();
  }
  return open != 0;
}

/// The loop over the key blocks. E is the type of the keys' tiles: T, or bfloat16 with gemm_bf16
/// (whose products of q and k are exact in float; weights are not, so they meet v in T).
template <typename S, typename E, class Bias>
int64_t forward_tile_as(const AttentionParams& p, int64_t pair, const Tile& tile,
                        const Visit* visits, int64_t count, void* scratch) {
  using T = compute_t<S>;
  constexpr bool kPairs = !std::is_same_v<E, T>;
  Arena arena(scratch);
  ForwardScratch<T> s(p, arena);
  Rows<T>& rows = s.rows;
  rows.begin(p, pair, tile);
  load_queries<S>(p, rows, s.staging, s.q_t);
  const int64_t width = rows.width;
  if constexpr (kPairs) {
    pair_queries(s.q_t, p.head_dim, width, s.paired_q);
  }
  fill(s.row_max, -std::numeric_limits<T>::infinity(), width);
  fill(s.row_sum, T(0), width);
  fill(s.dropped, T(0), width);
  double first_query = rows.position[0], last_query = first_query;
  for (int64_t r = 0; r < rows.rows; ++r) {
    first_query = rows.position[r] < first_query ? rows.position[r] : first_query;
    last_query = rows.position[r] > last_query ? rows.position[r] : last_query;
  }

  const T scale = static_cast<T>(p.scale);
  // Up to this norm of a key no product of it can overflow, before or after scaling. A comparison
  // with NaN is false.
  const double size = std::abs(p.scale) <= 1 ? 1.0 : std::abs(p.scale);
  const double limit = static_cast<double>(std::numeric_limits<T>::max()) / 4;
  const double safe_norm = rows.finite_bias ? limit / (rows.longest * size) : -1.0;
  const int64_t packed = pair - p.first_pair;
  bool stopped[3] = {false, false, false};
  int64_t computed = 0;
  bool begun = false;  // out_t holds something
  bool open = update_lse_below(s);
  for (int64_t n = 0; n < count; ++n) {
    const Visit& visit = visits[n];
    if (stopped[visit.side + 1]) {
      continue;
    }
    const int64_t block = visit.block;
    bool possible = true;
    Keep keep = position_keep(p, rows.batch, block, first_query, possible, last_query);
    if (!possible) {
      continue;
    }
    const double norm = p.stats.norm[pair * p.key_blocks + block];
    const Need need = need_of(p, rows, block, norm, visit.far_norm);
    if (visit.side != 0 && !need.beyond) {
      stopped[visit.side + 1] = true;
      continue;
    }
    if (!need.block) {
      continue;
    }
    const bool finite = norm < std::numeric_limits<double>::infinity();
    if (p.mask != nullptr || keep == Keep::kTile || !finite) {
      s.keep.build(p, rows, block);
      if (!s.keep.any) {
        continue;
      }
      keep = s.keep.all && finite ? Keep::kAll : Keep::kTile;
      if (open) {
        // Padding queries stay open for ever; they must not make the others visit everything.
        for (int64_t r = 0; r < rows.rows; ++r) {
          if (rows.lse_below[r] == -std::numeric_limits<double>::infinity() && !s.keep.any_row[r]) {
            rows.lse_below[r] = std::numeric_limits<double>::infinity();
          }
        }
        const bool needed = need_of(p, rows, block, norm, visit.far_norm).block;
        update_lse_below(s);
        if (!needed) {
          continue;
        }
      }
    }
    ++computed;

    const int64_t keys = block_keys(p, block), slot = packed * p.key_blocks + block;
    const E* k = nullptr;
    int64_t ld_k = p.head_dim;
    if (!p.k_in_place) {
      k = static_cast<const E*>(p.packed_k) + slot * kKeyBlock * p.head_dim;
    } else if (keys < kKeyBlock) {
      k = static_cast<const E*>(p.packed_k) + packed * kKeyBlock * p.head_dim;
    } else {
      k = row_of<E>(p.k, p.k_strides, rows.batch, rows.kv_head, block * kKeyBlock);
      ld_k = p.k_strides.row;
    }
    const T* v_t = static_cast<const T*>(p.packed_v) + slot * p.v_dim * kKeyBlock;
    if constexpr (kPairs) {
      p.gemm_bf16(kKeyBlock, width, p.head_dim, k, ld_k, s.paired_q, s.scores, width, false);
    } else {
      gemm_of<T>(p)(kKeyBlock, width, p.head_dim, k, ld_k, s.q_t, width, s.scores, width, false);
    }
    relative_keys(p, rows, block, s.rel_key);
    // A value that is not finite shows even at weight 0, so its block is never dropped.
    const T share = finite ? static_cast<T>(p.drop_share()) : T(0);
    const BlockEffect effect = norm <= safe_norm
                                   ? softmax_block<true, Bias>(s, keep, keys, scale, share)
                                   : softmax_block<false, Bias>(s, keep, keys, scale, share);
    if (!effect.weighs) {
      continue;
    }
    open = update_lse_below(s);
    if (effect.changed && begun) {
      rescale(s.out_t, s.correction, p.v_dim, width);
    }
    if (finite) {
      gemm_of<T>(p)(p.v_dim, width, kKeyBlock, v_t, kKeyBlock, s.scores, width, s.out_t, width,
                    begun);
    } else {
      if (!begun) {
        fill(s.out_t, T(0), p.v_dim * width);
      }
      add_values_pairwise(rows, keys, p.v_dim, s.keep.keep, s.scores, v_t, s.out_t);
    }
    begun = true;
  }
  if (!begun) {
    fill(s.out_t, T(0), p.v_dim * width);
  }
  store_tile<S>(p, s);
  return computed;
}

template <typename S, class Bias>
int64_t forward_tile(const AttentionParams& p, int64_t pair, const Tile& tile, const Visit* visits,
                     int64_t count, void* scratch) {
  if constexpr (kBf16Tiles<S>) {
    if (p.gemm_bf16 != nullptr) {
      return forward_tile_as<S, S, Bias>(p, pair, tile, visits, count, scratch);
    }
  }
  return forward_tile_as<S, compute_t<S>, Bias>(p, pair, tile, visits, count, scratch);
}

}  // namespace
}  // namespace posenc::attention
