#pragma once

// The CUDA kernels of alibi_softmax, forward and backward: their parameters, grids and bodies.
// Neither torch nor CUDA headers: the same lines run on the host in tests (see core/gpu_context.h).

#include <posenc/bias/alibi_bias_device.h>

#include <cmath>
#include <limits>
#include <type_traits>

namespace posenc::bias {

struct AlibiSoftmaxDeviceParams {
  static constexpr int kMaxHeads = 256;

  const void* scores;      ///< backward: the gradient
  const void* weights_in;  ///< backward: the forward's output
  void* out;
  ScoreStrides score_strides, weight_strides, out_strides;
  const bool* mask;  ///< nullptr: none
  ScoreStrides mask_strides;
  int64_t rows, heads, q_len, k_len, offset;  ///< rows = batches · heads · q_len
  double scale;
  bool causal;
  bool packed;       ///< 16 bytes at a time, of scores, weights and output
  bool mask_packed;  ///< as many bytes of the mask at a time
  double slopes[kMaxHeads];
};
static_assert(sizeof(AlibiSoftmaxDeviceParams) <= 4096, "what every GPU takes as parameters");

/// How rows are shared out: a warp or a block for each, and whether what was read is kept.
struct RowPlan {
  bool whole_block;
  bool kept;
};

/// Bytes that each thread keeps of an element between the two passes of a softmax: the biased score
/// forward, the gradient and the weight backward.
template <class T>
constexpr int64_t kept_bytes(bool backward) {
  return backward ? 2 * sizeof(T) : sizeof(ComputeType<T>);
}

/// A warp a row while eight rows leave room for other blocks; longer rows are read a second time.
template <class T>
constexpr RowPlan softmax_plan(int64_t k_len, bool backward) {
  const int64_t row = k_len * kept_bytes<T>(backward);
  constexpr int64_t kPlain = 48 * 1024;
  return {row > 4096, row <= kPlain - core::kTeamBytes};
}

/// f(whole block, kept) with constants, for the three kernels that a plan can ask for.
template <class F>
auto with_plan(const RowPlan& plan, const F& f) {
  using Yes = std::true_type;
  using No = std::false_type;
  return !plan.whole_block ? f(No(), Yes()) : plan.kept ? f(Yes(), Yes()) : f(Yes(), No());
}

template <class T>
core::GridShape softmax_grid(const AlibiSoftmaxDeviceParams& p, bool backward) {
  const RowPlan plan = softmax_plan<T>(p.k_len, backward);
  const int64_t rows_of_block = plan.whole_block ? 1 : kScoreThreads / 32;
  core::GridShape grid = core::line_of_blocks(core::ceil_div(p.rows, rows_of_block));
  grid.threads = kScoreThreads;
  grid.shared_bytes = core::kTeamBytes;
  if (plan.kept) {
    grid.shared_bytes += rows_of_block * p.k_len * kept_bytes<T>(backward);
  }
  return grid;
}

/// A row of scores, as one team of threads sees it.
struct ScoreRow {
  int64_t batch, head, i;
  int64_t keys;      ///< how many the causal mask leaves; what follows is 0
  int64_t position;  ///< of the query, in keys

  template <class Params>
  POSENC_HD ScoreRow(const Params& p, int64_t n)
      : batch(n / p.q_len / p.heads),
        head(n / p.q_len % p.heads),
        i(n % p.q_len),
        keys(p.k_len),
        position(i + p.offset) {
    if (p.causal) {
      keys = causal_keys(position, p.k_len);
    }
  }

  template <class T>
  POSENC_HD T* at(T* base, const ScoreStrides& s) const {
    return base + batch * s.batch + head * s.head + i * s.row;
  }
};

/// Scores from `key` on, scaled and biased. +infinity marks a key that is not allowed; where a
/// score itself is so, its row is NaN anyway, and it becomes that.
template <class T, int N, class Ctx>
POSENC_HD void biased_scores(const Ctx& gpu, const AlibiSoftmaxDeviceParams& p, const ScoreRow& row,
                             int64_t key, ComputeType<T> (&x)[N]) {
  using C = ComputeType<T>;
  const T* scores = row.at(static_cast<const T*>(p.scores), p.score_strides);
  const Pack<T, N> raw = load_scores<N>(gpu, scores, p.score_strides.last, key);
  const C scale = static_cast<C>(p.scale), slope = static_cast<C>(p.slopes[row.head]);
  Pack<bool, N> allowed;
  for (int e = 0; e < N; ++e) {
    allowed[e] = key + e < row.keys;
  }
  if (p.mask != nullptr) {
    const bool* mask = row.at(p.mask, p.mask_strides);
    if (N > 1 && p.mask_packed) {
      const Pack<bool, N> keep = load_scores<N>(gpu, mask, 1, key);
      for (int e = 0; e < N; ++e) {
        allowed[e] = allowed[e] && keep[e];
      }
    } else {
      for (int e = 0; e < N; ++e) {
        allowed[e] = allowed[e] && gpu.load(mask + (key + e) * p.mask_strides.last);
      }
    }
  }
  for (int e = 0; e < N; ++e) {
    const C biased = AlibiBias::add(core::to_compute(raw[e]) * scale, slope,
                                    abs_distance<C>(row.position, key + e));
    x[e] = !allowed[e]              ? kInfinite<C>
           : biased == kInfinite<C> ? std::numeric_limits<C>::quiet_NaN()
                                    : biased;
  }
}

/// The row of this thread's team, or rows and beyond where there is none.
template <bool kWholeBlock, class Ctx>
POSENC_HD int64_t team_row(const Ctx& gpu) {
  const int64_t block = core::linear_block(gpu);
  return kWholeBlock ? block : block * (gpu.threads() / 32) + gpu.warp();
}

/// softmax(scale · score + bias) of a row by a warp or a block: the largest and the sum in one pass
/// (each thread's own sum follows its own maximum), the weights in a second one, from shared memory
/// where the row fits (`kKept`; a thread reads there only what it wrote).
template <class T, int N, bool kWholeBlock, bool kKept, class Ctx>
POSENC_HD void alibi_softmax_body(const Ctx& gpu, const AlibiSoftmaxDeviceParams& p) {
  using C = ComputeType<T>;
  const int64_t n = team_row<kWholeBlock>(gpu);
  if (n >= p.rows) {
    return;
  }
  const core::Team<kWholeBlock, Ctx> team(gpu);
  const ScoreRow row(p, n);
  const int64_t groups = p.k_len / N;  // packed: N divides k_len
  C* kept = nullptr;
  if constexpr (kKept) {
    kept = gpu.template shared<C>(core::kTeamBytes) + (kWholeBlock ? 0 : gpu.warp() * p.k_len);
  }

  C most = -kInfinite<C>, sum = 0;
  for (int64_t g = team.rank(); g * N < row.keys; g += team.size()) {
    C x[N];
    biased_scores<T, N>(gpu, p, row, g * N, x);
    C local = most;
    for (int e = 0; e < N; ++e) {
      if constexpr (kKept) {
        kept[e * groups + g] = x[e];  // neighbouring threads, neighbouring words
      }
      local = x[e] != kInfinite<C> && x[e] > local ? x[e] : local;  // never NaN
    }
    if (local > most) {
      sum *= std::exp(most - local);
      most = local;
    }
    const C shift = most == -kInfinite<C> ? C(0) : most;
    for (int e = 0; e < N; ++e) {
      sum += x[e] == kInfinite<C> ? C(0) : std::exp(x[e] - shift);
    }
  }
  const C largest = team.max(most);
  // A sum without a finite score is 0, or NaN by a NaN, and stays so.
  sum *= most == largest ? C(1) : std::exp(most - largest);
  // Where every allowed score is −infinity, 0 · (1 / 0): NaN, as there is no such distribution.
  const C inverse = C(1) / team.sum(sum);
  const C shift = largest == -kInfinite<C> ? C(0) : largest;

  T* out = row.at(static_cast<T*>(p.out), p.out_strides);
  for (int64_t g = team.rank(); g < groups; g += team.size()) {
    C x[N];
    for (int e = 0; e < N; ++e) {
      x[e] = kInfinite<C>;
    }
    if (g * N < row.keys) {
      if constexpr (kKept) {
        for (int e = 0; e < N; ++e) {
          x[e] = kept[e * groups + g];
        }
      } else {
        biased_scores<T, N>(gpu, p, row, g * N, x);
      }
    }
    for (int e = 0; e < N; ++e) {
      x[e] = x[e] == kInfinite<C> ? C(0) : std::exp(x[e] - shift) * inverse;
    }
    store_scores<N>(gpu, out, p.out_strides.last, g * N, x);
  }
}

/// scale · w · (g − Σ w·g). Where a weight is 0 the gradient is not touched: it may be NaN under a
/// mask.
template <class T, int N, bool kWholeBlock, bool kKept, class Ctx>
POSENC_HD void alibi_softmax_backward_body(const Ctx& gpu, const AlibiSoftmaxDeviceParams& p) {
  using C = ComputeType<T>;
  const int64_t n = team_row<kWholeBlock>(gpu);
  if (n >= p.rows) {
    return;
  }
  const core::Team<kWholeBlock, Ctx> team(gpu);
  const ScoreRow row(p, n);
  const int64_t groups = p.k_len / N;
  T* kept = nullptr;
  if constexpr (kKept) {
    kept = gpu.template shared<T>(core::kTeamBytes) + (kWholeBlock ? 0 : gpu.warp() * 2 * p.k_len);
  }
  const T* grads = row.at(static_cast<const T*>(p.scores), p.score_strides);
  const T* weights = row.at(static_cast<const T*>(p.weights_in), p.weight_strides);

  C sum = 0;
  for (int64_t g = team.rank(); g < groups; g += team.size()) {
    const auto grad = load_scores<N>(gpu, grads, p.score_strides.last, g * N);
    const auto weight = load_scores<N>(gpu, weights, p.weight_strides.last, g * N);
    for (int e = 0; e < N; ++e) {
      if constexpr (kKept) {
        kept[e * groups + g] = grad[e];
        kept[p.k_len + e * groups + g] = weight[e];
      }
      const C w = core::to_compute(weight[e]);
      sum += w == 0 ? C(0) : w * core::to_compute(grad[e]);
    }
  }
  sum = team.sum(sum);

  const C scale = static_cast<C>(p.scale);
  T* out = row.at(static_cast<T*>(p.out), p.out_strides);
  for (int64_t g = team.rank(); g < groups; g += team.size()) {
    Pack<T, N> grad, weight;
    if constexpr (kKept) {
      for (int e = 0; e < N; ++e) {
        grad[e] = kept[e * groups + g];
        weight[e] = kept[p.k_len + e * groups + g];
      }
    } else {
      grad = load_scores<N>(gpu, grads, p.score_strides.last, g * N);
      weight = load_scores<N>(gpu, weights, p.weight_strides.last, g * N);
    }
    C result[N];
    for (int e = 0; e < N; ++e) {
      const C w = core::to_compute(weight[e]);
      result[e] = scale * w * ((w == 0 ? C(0) : core::to_compute(grad[e])) - sum);
    }
    store_scores<N>(gpu, out, p.out_strides.last, g * N, result);
  }
}

}  // namespace posenc::bias
