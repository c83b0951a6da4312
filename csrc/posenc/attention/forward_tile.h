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
  }
};

/// What a block did to the running maxima: whether older weights must be multiplied by a correction
/// other than 1, and whether one of its keys weighs anything.
struct BlockEffect {
  bool changed, weighs;
};

/// One block of keys into running maximum and sum: scores become weights relative to the new
/// maximum, and correction[r] is what older weights of the row must be multiplied with.
///
/// \param share of a row's sum that the keys may weigh in all which count as nothing; dropped[r] is
/// what they weigh so far, relative to the maximum. 0: every key counts. A NaN never counts as
/// nothing.
template <Keep keep, class Bias, typename T>
BlockEffect softmax_block(const Rows<T>& rows, int64_t keys, T scale, T share, const T* rel_key,
                          const T* keep_tile, T* scores, T* row_max, T* row_sum, T* dropped,
                          T* correction) {
  const int64_t width = rows.width;
  const Vec<T> nothing(-std::numeric_limits<T>::infinity()), zero(0), one(1), factor(scale);
  Vec<T> changed(0);
  bool weighs = false;
  for (int64_t r = 0; r < width; r += Vec<T>::size()) {
    const Vec<T> position = Vec<T>::loadu(rows.rel_position + r),
                 coef = Vec<T>::loadu(rows.coef + r);
    const Vec<T> old_max = Vec<T>::loadu(row_max + r);
    Vec<T> block_max = nothing;
    for (int64_t t = 0; t < keys; ++t) {
      T* at = scores + t * width + r;
      const Vec<T> key(rel_key[t]);
      Vec<T> x = Bias::add(Vec<T>::loadu(at) * factor, coef, (key - position).abs());
      if constexpr (keep == Keep::kCausal) {
        x = Vec<T>::blendv(nothing, x, key <= position);
      } else if constexpr (keep == Keep::kTile) {
        x = Vec<T>::blendv(nothing, x, Vec<T>::loadu(keep_tile + t * width + r) > zero);
      }
      x.store(at);
      block_max = at::vec::maximum(block_max, x);
    }
    const Vec<T> old_sum = Vec<T>::loadu(row_sum + r);
    const Vec<T> lost = at::vec::fmadd(exp_weight(block_max - old_max),
                                       Vec<T>(static_cast<T>(keys)), Vec<T>::loadu(dropped + r));
    // A true lane is all ones: without a zero lane, every row of the vector can do without the
    // block.
    if ((lost < old_sum * Vec<T>(share)).zero_mask() == 0) {
      for (int64_t t = 0; t < keys; ++t) {
        zero.store(scores + t * width + r);
      }
      lost.store(dropped + r);
      one.store(correction + r);
      continue;
    }
    weighs = true;
    const Vec<T> new_max = at::vec::maximum(old_max, block_max);
    const Vec<T> shift = Vec<T>::blendv(new_max, zero, new_max == nothing);
    const Vec<T> fix = Vec<T>::blendv(exp_weight(old_max - shift), one, old_max == new_max);
    Vec<T> sum(0);
    for (int64_t t = 0; t < keys; ++t) {
      T* at = scores + t * width + r;
      const Vec<T> weight = exp_weight(Vec<T>::loadu(at) - shift);
      weight.store(at);
      sum = sum + weight;
    }
    at::vec::fmadd(old_sum, fix, sum).store(row_sum + r);
    new_max.store(row_max + r);
    fix.store(correction + r);
    changed = changed | (fix != one);
  }
  fill(scores + keys * width, T(0), (kKeyBlock - keys) * width);
  return {changed.zero_mask() != (1 << Vec<T>::size()) - 1, weighs};
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
      rows.reach[r] = std::abs(p.scale) * norm_above(row, p.head_dim);
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

template <typename S, class Bias>
int64_t forward_tile(const AttentionParams& p, int64_t pair, const Tile& tile, const Visit* visits,
                     int64_t count, void* scratch) {
  using T = compute_t<S>;
  Arena arena(scratch);
  ForwardScratch<T> s(p, arena);
  Rows<T>& rows = s.rows;
  rows.begin(p, pair, tile);
  load_queries<S>(p, rows, s.staging, s.q_t);
  const int64_t width = rows.width;
  fill(s.row_max, -std::numeric_limits<T>::infinity(), width);
  fill(s.row_sum, T(0), width);
  fill(s.dropped, T(0), width);
  double first_query = rows.position[0], last_query = first_query;
  for (int64_t r = 0; r < rows.rows; ++r) {
    first_query = rows.position[r] < first_query ? rows.position[r] : first_query;
    last_query = rows.position[r] > last_query ? rows.position[r] : last_query;
  }

  const GemmFn<T> gemm = gemm_of<T>(p);
  const T scale = static_cast<T>(p.scale);
  const int64_t packed = pair - p.first_pair;
  bool stopped[3] = {false, false, false};
  int64_t computed = 0;
  bool begun = false;  // out_t holds something
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
    // Rows that have seen no key yet have a maximum of −infinity: any block may be theirs.
    bool open = false;
    for (int64_t r = 0; r < rows.rows; ++r) {
      rows.lse_below[r] = static_cast<double>(s.row_max[r]) + log_below(s.row_sum[r]);
      open = open || s.row_max[r] == -std::numeric_limits<T>::infinity();
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
        if (!need_of(p, rows, block, norm, visit.far_norm).block) {
          continue;
        }
      }
    }
    ++computed;

    const int64_t keys = block_keys(p, block), slot = packed * p.key_blocks + block;
    const T* k = nullptr;
    int64_t ld_k = p.head_dim;
    if (!p.k_in_place) {
      k = static_cast<const T*>(p.packed_k) + slot * kKeyBlock * p.head_dim;
    } else if (keys < kKeyBlock) {
      k = static_cast<const T*>(p.packed_k) + packed * kKeyBlock * p.head_dim;
    } else {
      k = row_of<T>(p.k, p.k_strides, rows.batch, rows.kv_head, block * kKeyBlock);
      ld_k = p.k_strides.row;
    }
    const T* v_t = static_cast<const T*>(p.packed_v) + slot * p.v_dim * kKeyBlock;
    gemm(kKeyBlock, width, p.head_dim, k, ld_k, s.q_t, width, s.scores, width, false);
    relative_keys(p, rows, block, s.rel_key);
    // A value that is not finite shows even at weight 0, so its block is never dropped.
    const T share = finite ? static_cast<T>(p.drop_share()) : T(0);
    BlockEffect effect{};
    switch (keep) {
      case Keep::kAll:
        effect = softmax_block<Keep::kAll, Bias>(rows, keys, scale, share, s.rel_key, s.keep.keep,
                                                 s.scores, s.row_max, s.row_sum, s.dropped,
                                                 s.correction);
        break;
      case Keep::kCausal:
        effect = softmax_block<Keep::kCausal, Bias>(rows, keys, scale, share, s.rel_key,
                                                    s.keep.keep, s.scores, s.row_max, s.row_sum,
                                                    s.dropped, s.correction);
        break;
      case Keep::kTile:
        effect = softmax_block<Keep::kTile, Bias>(rows, keys, scale, share, s.rel_key, s.keep.keep,
                                                  s.scores, s.row_max, s.row_sum, s.dropped,
                                                  s.correction);
        break;
    }
    if (!effect.weighs) {
      continue;
    }
    if (effect.changed && begun) {
      rescale(s.out_t, s.correction, p.v_dim, width);
    }
    if (finite) {
      gemm(p.v_dim, width, kKeyBlock, v_t, kKeyBlock, s.scores, width, s.out_t, width, begun);
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

}  // namespace
}  // namespace posenc::attention
