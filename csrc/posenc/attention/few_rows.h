#pragma once

// A decode step: few query rows, many keys. Each key is read once for all rows of its group, with
// plain dot products; values are read only where a row gives them weight. For *_simd.cpp only.

#include <posenc/attention/forward_tile.h>

namespace posenc::attention {
namespace {

template <typename T>
struct FewScratch {
  Rows<T> rows;
  KeepTile<T> keep;
  T *q, *scores, *rel_key, *block_max, *k, *v;
  double* seed;

  FewScratch(const AttentionParams& p, Arena& arena) {
    const int64_t rows_max = padded(p.group * p.q_len);
    rows.take(arena, rows_max);
    keep.take(arena, rows_max);
    q = arena.take<T>(rows_max * p.head_dim);
    scores = arena.take<T>(rows_max * kKeyBlock);
    rel_key = arena.take<T>(kKeyBlock);
    block_max = arena.take<T>(rows_max);
    k = arena.take<T>(kKeyBlock * p.head_dim);
    v = arena.take<T>(kKeyBlock * p.v_dim);
    seed = arena.take<double>(rows_max);
  }
};

/// Keys that are asked for before their turn: one thread's reading of a single stream does not fill
/// the memory's pipe by itself.
constexpr int64_t kRowsAhead = 24;

/// Scores of all rows against one block, −infinity where a key is not allowed, and their maxima.
template <typename S, class Bias, typename T>
void few_scores(const AttentionParams& p, FewScratch<T>& s, int64_t block, bool restricted) {
  const Rows<T>& rows = s.rows;
  const int64_t keys = block_keys(p, block);
  const T* k = s.k;
  int64_t ld = p.head_dim;
  if (readable_in_place<S>(p.k_strides, p.head_dim)) {
    k = row_of<T>(p.k, p.k_strides, rows.batch, rows.kv_head, block * kKeyBlock);
    ld = p.k_strides.row;
  } else {
    load_block<S>(p.k, p.k_strides, rows.batch, rows.kv_head, block, keys, p.head_dim, s.k);
  }
  for (int64_t t = 0; t < keys; ++t) {
    prefetch_row(k + (t + kRowsAhead) * ld, p.head_dim);
    for (int64_t r = 0; r < rows.rows; ++r) {
      s.scores[r * kKeyBlock + t] = dot(s.q + r * p.head_dim, k + t * ld, p.head_dim);
    }
  }
  relative_keys(p, rows, block, s.rel_key);
  const Vec<T> factor(static_cast<T>(p.scale)), nothing(-std::numeric_limits<T>::infinity());
  for (int64_t r = 0; r < rows.rows; ++r) {
    T* scores = s.scores + r * kKeyBlock;
    for (int64_t t = keys; t < kKeyBlock; ++t) {
      scores[t] = 0;
    }
    const Vec<T> position(rows.rel_position[r]), coef(rows.coef[r]);
    for (int64_t t = 0; t < kKeyBlock; t += Vec<T>::size()) {
      const Vec<T> distance = (Vec<T>::loadu(s.rel_key + t) - position).abs();
      Bias::add(Vec<T>::loadu(scores + t) * factor, coef, distance).store(scores + t);
    }
    for (int64_t t = 0; t < kKeyBlock; ++t) {
      if (t >= keys || (restricted && s.keep.keep[t * rows.width + r] == 0)) {
        scores[t] = -std::numeric_limits<T>::infinity();
      }
    }
    Vec<T> most = nothing;
    for (int64_t t = 0; t < kKeyBlock; t += Vec<T>::size()) {
      most = at::vec::maximum(most, Vec<T>::loadu(scores + t));
    }
    s.block_max[r] = at::vec::vec_reduce_all<T>(
        [](const Vec<T>& a, const Vec<T>& b) { return at::vec::maximum(a, b); }, most);
  }
}

/// values += Σ_t weights[t] · v[t], the channels of a strip held in registers while the keys go by.
template <typename T>
void add_values(const T* weights, const T* v, int64_t ld, int64_t keys, int64_t channels,
                T* values) {
  constexpr int64_t W = Vec<T>::size(), kStrip = 4 * W;
  int64_t d = 0;
  for (; d + kStrip <= channels; d += kStrip) {
    Vec<T> a0 = Vec<T>::loadu(values + d), a1 = Vec<T>::loadu(values + d + W);
    Vec<T> a2 = Vec<T>::loadu(values + d + 2 * W), a3 = Vec<T>::loadu(values + d + 3 * W);
    for (int64_t t = 0; t < keys; ++t) {
      const Vec<T> w(weights[t]);
      const T* row = v + t * ld + d;
      a0 = at::vec::fmadd(w, Vec<T>::loadu(row), a0);
      a1 = at::vec::fmadd(w, Vec<T>::loadu(row + W), a1);
      a2 = at::vec::fmadd(w, Vec<T>::loadu(row + 2 * W), a2);
      a3 = at::vec::fmadd(w, Vec<T>::loadu(row + 3 * W), a3);
    }
    a0.store(values + d);
    a1.store(values + d + W);
    a2.store(values + d + 2 * W);
    a3.store(values + d + 3 * W);
  }
  if (d < channels) {
    for (int64_t t = 0; t < keys; ++t) {
      add_scaled(weights[t], v + t * ld + d, values + d, channels - d);
    }
  }
}

template <typename S, class Bias>
int64_t few_rows(const AttentionParams& p, int64_t pair, const Visit* visits, int64_t count,
                 int64_t seed, void* partial, void* scratch) {
  using T = compute_t<S>;
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  Arena arena(scratch);
  FewScratch<T> s(p, arena);
  Rows<T>& rows = s.rows;
  rows.begin(p, pair, Tile{0, p.group, 0, p.q_len});
  double first_query = rows.position[0], last_query = first_query;
  const int64_t stride = 2 + p.v_dim;
  T* const out = static_cast<T*>(partial);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const S* q = row_of<S>(p.q, p.q_strides, rows.batch, rows.kv_head * p.group + rows.head(r),
                           rows.query(r));
    load_row(q, p.q_strides.last, s.q + r * p.head_dim, p.head_dim);
    rows.reach[r] = std::abs(p.scale) * norm_above(s.q + r * p.head_dim, p.head_dim);
    first_query = rows.position[r] < first_query ? rows.position[r] : first_query;
    last_query = rows.position[r] > last_query ? rows.position[r] : last_query;
    fill(out + r * stride, T(0), stride);
    out[r * stride] = kNothing;
    s.seed[r] = kNothing;
  }

  const double skip_log = p.skip_log();
  bool stopped[3] = {false, false, false};
  int64_t computed = 0;
  // n = −1: the nearest block alone, so that a far part of the keys knows what it is compared with.
  for (int64_t n = seed >= 0 ? -1 : 0; n < count; ++n) {
    const bool seeding = n < 0;
    const int64_t block = seeding ? seed : visits[n].block;
    bool possible = true;
    const Keep keep = position_keep(p, rows.batch, block, first_query, possible, last_query);
    if (!possible || (!seeding && stopped[visits[n].side + 1])) {
      continue;
    }
    for (int64_t r = 0; r < rows.rows; ++r) {
      const double most = static_cast<double>(out[r * stride]) + log_below(out[r * stride + 1]);
      rows.lse_below[r] = most > s.seed[r] || most != most ? most : s.seed[r];
    }
    bool finite = true;
    if (p.keys_known && !seeding) {
      const double norm = p.stats.norm[pair * p.key_blocks + block];
      finite = norm < std::numeric_limits<double>::infinity();
      const Need need = need_of(p, rows, block, norm, visits[n].far_norm);
      stopped[visits[n].side + 1] = visits[n].side != 0 && !need.beyond;
      if (stopped[visits[n].side + 1] || !need.block) {
        continue;
      }
    }
    const bool restricted = p.mask != nullptr || keep != Keep::kAll;
    if (restricted) {
      s.keep.build(p, rows, block);
      if (!s.keep.any) {
        continue;
      }
    }
    few_scores<S, Bias>(p, s, block, restricted);
    if (seeding) {
      for (int64_t r = 0; r < rows.rows; ++r) {
        // NaN stays out of the seed: the row meets it again where it is due.
        s.seed[r] = s.block_max[r] > kNothing ? static_cast<double>(s.block_max[r]) : s.seed[r];
      }
      continue;
    }
    ++computed;
    bool need = !finite;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const double most = static_cast<double>(s.block_max[r]);
      need = need || (most != kNothing && !(most < rows.lse_below[r] + skip_log));
    }
    if (!need) {
      continue;
    }

    const int64_t keys = block_keys(p, block);
    const T* v = s.v;
    int64_t ld = p.v_dim;
    if (readable_in_place<S>(p.v_strides, p.v_dim)) {
      v = row_of<T>(p.v, p.v_strides, rows.batch, rows.kv_head, block * kKeyBlock);
      ld = p.v_strides.row;
    } else {
      load_block<S>(p.v, p.v_strides, rows.batch, rows.kv_head, block, keys, p.v_dim, s.v);
    }
    for (int64_t r = 0; r < rows.rows; ++r) {
      T* weights = s.scores + r * kKeyBlock;
      T *row_max = out + r * stride, *row_sum = row_max + 1, *values = row_max + 2;
      const T old_max = *row_max;
      const T new_max = s.block_max[r] <= old_max ? old_max : s.block_max[r];  // NaN wins
      const T shift = new_max == kNothing ? T(0) : new_max;
      Vec<T> sum(0);
      for (int64_t t = 0; t < kKeyBlock; t += Vec<T>::size()) {
        const Vec<T> w = exp_weight(Vec<T>::loadu(weights + t) - Vec<T>(shift));
        w.store(weights + t);
        sum = sum + w;
      }
      if (new_max != old_max) {
        const T fix = std::exp(old_max - shift);
        *row_sum *= fix;
        for (int64_t d = 0; d < p.v_dim; ++d) {
          values[d] *= fix;
        }
      }
      *row_max = new_max;
      *row_sum += sum_lanes(sum);
      if (!restricted) {
        add_values(weights, v, ld, keys, p.v_dim, values);
        continue;
      }
      for (int64_t t = 0; t < keys; ++t) {
        if (s.keep.keep[t * rows.width + r] != 0) {
          add_scaled(weights[t], v + t * ld, values, p.v_dim);
        }
      }
    }
  }
  return computed;
}

/// Puts the parts of all rows together, in order, and writes output and log-sum-exp.
template <typename S>
void merge_rows(const AttentionParams& p, int64_t pair, const void* partials, int64_t parts) {
  using T = compute_t<S>;
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  const int64_t rows = p.group * p.q_len, stride = 2 + p.v_dim;
  const int64_t batch = pair / p.kv_heads, kv_head = pair % p.kv_heads;
  T* const first = static_cast<T*>(const_cast<void*>(partials));
  for (int64_t r = 0; r < rows; ++r) {
    T* sum = first + r * stride;
    for (int64_t part = 1; part < parts; ++part) {
      const T* other = first + (part * rows + r) * stride;
      if (other[0] == kNothing) {
        continue;
      }
      const T most = other[0] <= sum[0] ? sum[0] : other[0];
      const T fix = most == sum[0] ? T(1) : std::exp(sum[0] - most),
              factor = std::exp(other[0] - most);
      for (int64_t d = 1; d < stride; ++d) {
        sum[d] = sum[d] * fix + other[d] * factor;
      }
      sum[0] = most;
    }
    write_row<S>(p, batch, kv_head * p.group + r / p.q_len, r % p.q_len, sum[0], sum[1], sum + 2);
  }
}

}  // namespace
}  // namespace posenc::attention
