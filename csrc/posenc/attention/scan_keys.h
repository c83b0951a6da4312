#pragma once

// The pass over the keys that comes before the tiles: norms, finiteness, and copies in the layout
// that the products want. For *_simd.cpp only.

#include <posenc/attention/tile_rows.h>

namespace posenc::attention {
namespace {

inline int64_t scan_scratch_size(const AttentionParams& p) {
  return kKeyBlock * (p.head_dim > p.v_dim ? p.head_dim : p.v_dim);
}

/// E: the type of the copies of k.
template <typename S, typename E>
void scan_keys_as(const AttentionParams& p, int64_t pair, int64_t block, void* scratch) {
  using T = compute_t<S>;
  constexpr bool kNarrow = !std::is_same_v<E, T>;
  T* rows = static_cast<T*>(scratch);
  const int64_t batch = pair / p.kv_heads, kv_head = pair % p.kv_heads, keys = block_keys(p, block);
  const int64_t packed = pair - p.first_pair, slot = packed * p.key_blocks + block;

  E* copy = nullptr;
  if (p.packed_k != nullptr && !p.k_in_place) {
    copy = static_cast<E*>(p.packed_k) + slot * kKeyBlock * p.head_dim;
  } else if (p.packed_k != nullptr && keys < kKeyBlock) {
    copy = static_cast<E*>(p.packed_k) + packed * kKeyBlock * p.head_dim;
  }
  const T* k = rows;
  int64_t ld_k = p.head_dim;
  if (copy == nullptr && readable_in_place<S>(p.k_strides, p.head_dim)) {
    k = row_of<T>(p.k, p.k_strides, batch, kv_head, block * kKeyBlock);
    ld_k = p.k_strides.row;
  } else {
    T* wide = rows;
    if constexpr (!kNarrow) {
      wide = copy != nullptr ? copy : rows;
    }
    load_block<S>(p.k, p.k_strides, batch, kv_head, block, keys, p.head_dim, wide);
    k = wide;
  }
  double norm = 0;
  for (int64_t t = 0; t < keys; ++t) {
    const double n = norm_above(k + t * ld_k, p.head_dim);
    norm = n > norm ? n : norm;
  }
  if constexpr (kNarrow) {
    if (copy != nullptr) {
      store_row(k, copy, 1, kKeyBlock * p.head_dim);
    }
  }

  if (p.v != nullptr) {
    const T* v = rows;
    int64_t ld_v = p.v_dim;
    if (keys == kKeyBlock && readable_in_place<S>(p.v_strides, p.v_dim)) {
      v = row_of<T>(p.v, p.v_strides, batch, kv_head, block * kKeyBlock);
      ld_v = p.v_strides.row;
    } else {
      load_block<S>(p.v, p.v_strides, batch, kv_head, block, keys, p.v_dim, rows);
    }
    for (int64_t t = 0; t < keys; ++t) {
      if (!all_finite(v + t * ld_v, p.v_dim)) {
        norm = std::numeric_limits<double>::infinity();
      }
    }
    if (p.packed_v != nullptr) {
      transpose(v, ld_v, kKeyBlock, p.v_dim,
                static_cast<T*>(p.packed_v) + slot * p.v_dim * kKeyBlock, kKeyBlock);
    }
  }
  p.stats.norm[pair * p.key_blocks + block] = norm;
}

template <typename S>
void scan_keys(const AttentionParams& p, int64_t pair, int64_t block, void* scratch) {
  if constexpr (kBf16Tiles<S>) {
    if (p.gemm_bf16 != nullptr) {
      return scan_keys_as<S, S>(p, pair, block, scratch);
    }
  }
  scan_keys_as<S, compute_t<S>>(p, pair, block, scratch);
}

}  // namespace
}  // namespace posenc::attention
