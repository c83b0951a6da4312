#pragma once

// The CUDA kernel of alibi_bias, and what it shares with that of alibi_softmax. Neither
// torch nor CUDA headers: the same lines run on the host in tests (see core/gpu_context.h).

#include <posenc/bias/bias_policy.h>
#include <posenc/bias/score_strides.h>
#include <posenc/core/gpu_context.h>
#include <posenc/core/gpu_team.h>

#include <cmath>
#include <limits>

namespace posenc::bias {

using core::ComputeType;
using core::Pack;

/// Threads of a block.
inline constexpr int kScoreThreads = 256;

template <class C>
inline constexpr C kInfinite = std::numeric_limits<C>::infinity();

/// |position − key| as the arithmetic takes it; 32 bits convert faster and nearly always reach.
template <class C>
POSENC_HD C abs_distance(int64_t position, int64_t key) {
  const int64_t distance = position < key ? key - position : position - key;
  const auto small = static_cast<int32_t>(distance);
  return small == distance ? static_cast<C>(small) : static_cast<C>(distance);
}

/// N numbers from element `i` on; packed where N > 1, else any stride.
template <int N, class T, class Ctx>
POSENC_HD Pack<T, N> load_scores(const Ctx& gpu, const T* row, int64_t stride, int64_t i) {
  if constexpr (N > 1) {
    return gpu.load(reinterpret_cast<const Pack<T, N>*>(row + i));
  } else {
    return {gpu.load(row + i * stride)};
  }
}

template <int N, class T, class Ctx>
POSENC_HD void store_scores(const Ctx& gpu, T* row, int64_t stride, int64_t i,
                            const ComputeType<T> (&values)[N]) {
  if constexpr (N > 1) {
    gpu.store(reinterpret_cast<Pack<T, N>*>(row + i), core::pack<T, N>(values));
  } else {
    gpu.store(row + i * stride, core::from_compute<T>(values[0]));
  }
}

struct AlibiBiasDeviceParams {
  void* out;           ///< (rows, k_len), contiguous
  const void* slopes;  ///< one per q_len rows, of the compute type
  int64_t rows, q_len, k_len, offset;
  bool causal;
  bool packed;  ///< 16 bytes at a time: k_len is a multiple of that, out aligned
};

/// Rows of a block.
inline constexpr int kBiasRows = 8;

template <class T>
core::GridShape alibi_bias_grid(const AlibiBiasDeviceParams& p) {
  const int64_t groups = p.packed ? p.k_len / core::kFullPack<T> : p.k_len;
  core::GridShape grid;
  grid.x = core::ceil_div(p.rows, kBiasRows);
  grid.threads = core::threads_for(groups, kScoreThreads);
  grid.y = core::min_of(core::ceil_div(groups, grid.threads), core::kMaxGridYZ);
  return grid;
}

/// N columns of each of the block's rows a thread.
template <class T, int N, class Ctx>
POSENC_HD void alibi_bias_body(const Ctx& gpu, const AlibiBiasDeviceParams& p) {
  using C = ComputeType<T>;
  const int64_t first = int64_t{gpu.block(0)} * kBiasRows;
  const int64_t last = core::min_of(first + kBiasRows, p.rows);
  const int64_t step = int64_t{gpu.blocks(1)} * gpu.threads() * N;
  int64_t key = (int64_t{gpu.block(1)} * gpu.threads() + gpu.thread()) * N;
  for (; key < p.k_len; key += step) {
    int64_t set = first / p.q_len, i = first % p.q_len;
    for (int64_t n = first; n < last; ++n) {
      const C slope = gpu.load(static_cast<const C*>(p.slopes) + set);
      const int64_t position = i + p.offset;
      C values[N];
      for (int e = 0; e < N; ++e) {
        values[e] = p.causal && key + e > position
                        ? -kInfinite<C>
                        : AlibiBias::add(C(0), slope, abs_distance<C>(position, key + e));
      }
      store_scores<N>(gpu, static_cast<T*>(p.out) + n * p.k_len, 1, key, values);
      if (++i == p.q_len) {
        i = 0;
        ++set;
      }
    }
  }
}

}  // namespace posenc::bias
