// The loops of alibi_bias and alibi_softmax, compiled once per instruction set. A row is worked on
// in the compute type, in scratch that stays in cache, and rounded once.

#include <posenc/bias/alibi_kernels.h>
#include <posenc/core/vec_tools.h>

namespace posenc::bias {
namespace {

using namespace core;  // vector tools

/// −slope·|position − j| for all keys of a row. Distances are integers, subtracted as such.
template <typename T>
void bias_row(T slope, int64_t position, int64_t keys, T* row) {
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t distance = position - j;
    row[j] = -slope * static_cast<T>(distance < 0 ? -distance : distance);
  }
}

template <typename S>
void alibi_bias(const AlibiBiasParams& p, int64_t begin, int64_t end, void* scratch) {
  using T = compute_t<S>;
  T* row = static_cast<T*>(scratch);
  for (int64_t n = begin; n < end; ++n) {
    const int64_t position = n % p.q_len + p.offset;
    const int64_t keys = p.causal ? causal_keys(position, p.k_len) : p.k_len;
    bias_row(static_cast<T>(p.slopes[n / p.q_len]), position, keys, row);
    for (int64_t j = keys; j < p.k_len; ++j) {
      row[j] = -std::numeric_limits<T>::infinity();
    }
    store_row(row, static_cast<S*>(p.out) + n * p.k_len, 1, p.k_len);
  }
}

inline int64_t row_offset(const ScoreStrides& s, int64_t batch, int64_t head, int64_t row) {
  return batch * s.batch + head * s.head + row * s.row;
}

/// x := exp(x − max) / Σ over `keys` numbers; all 0 where every one is −infinity.
template <typename T>
void softmax_row(T* x, int64_t keys, bool has_key) {
  constexpr int64_t W = Vec<T>::size();
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  T most = kNothing;
  int64_t j = 0;
  if (keys >= W) {
    Vec<T> lanes(kNothing);
    for (; j + W <= keys; j += W) {
      lanes = at::vec::maximum(lanes, Vec<T>::loadu(x + j));
    }
    most = at::vec::vec_reduce_all<T>(
        [](const Vec<T>& a, const Vec<T>& b) { return at::vec::maximum(a, b); }, lanes);
  }
  for (; j < keys; ++j) {
    most = x[j] <= most ? most : x[j];  // NaN wins
  }
  if (most == kNothing) {
    fill(x, has_key ? std::numeric_limits<T>::quiet_NaN() : T(0), keys);
    return;
  }
  const Vec<T> shift(most);
  Vec<T> sums(0);
  for (j = 0; j + W <= keys; j += W) {
    const Vec<T> w = exp_weight(Vec<T>::loadu(x + j) - shift);
    w.store(x + j);
    sums = sums + w;
  }
  T sum = sum_lanes(sums);
  if (j < keys) {
    // The rest as a vector too, so that a weight does not depend on where its row ends.
    T rest[W];
    for (int64_t i = 0; i < W; ++i) {
      rest[i] = j + i < keys ? x[j + i] : kNothing;
    }
    exp_weight(Vec<T>::loadu(rest) - shift).store(rest);
    for (int64_t i = 0; j + i < keys; ++i) {
      x[j + i] = rest[i];
      sum += rest[i];
    }
  }
  const T inverse = 1 / sum;
  for (int64_t i = 0; i < keys; ++i) {
    x[i] *= inverse;
  }
}

template <typename S>
void alibi_softmax(const AlibiSoftmaxParams& p, int64_t begin, int64_t end, void* scratch) {
  using T = compute_t<S>;
  T *row = static_cast<T*>(scratch), *bias = row + p.k_len;
  const T scale = static_cast<T>(p.scale);
  for (int64_t n = begin; n < end; ++n) {
    const int64_t i = n % p.q_len, head = n / p.q_len % p.heads, batch = n / p.q_len / p.heads;
    const int64_t position = i + p.offset;
    const int64_t keys = p.causal ? causal_keys(position, p.k_len) : p.k_len;
    load_row(static_cast<const S*>(p.scores) + row_offset(p.score_strides, batch, head, i),
             p.score_strides.last, row, keys);
    bias_row(static_cast<T>(p.slopes[head]), position, keys, bias);
    for (int64_t j = 0; j < keys; ++j) {
      row[j] = row[j] * scale + bias[j];
    }
    bool has_key = keys > 0;
    if (p.mask != nullptr) {
      const bool* mask = p.mask + row_offset(p.mask_strides, batch, head, i);
      has_key = false;
      for (int64_t j = 0; j < keys; ++j) {
        const bool allowed = mask[j * p.mask_strides.last];
        row[j] = allowed ? row[j] : -std::numeric_limits<T>::infinity();
        has_key = has_key || allowed;
      }
    }
    softmax_row(row, keys, has_key);
    if (p.mask != nullptr && has_key) {
      // A row that is NaN is so at its allowed keys.
      const bool* mask = p.mask + row_offset(p.mask_strides, batch, head, i);
      for (int64_t j = 0; j < keys; ++j) {
        row[j] = mask[j * p.mask_strides.last] ? row[j] : T(0);
      }
    }
    fill(row + keys, T(0), p.k_len - keys);
    store_row(row, static_cast<S*>(p.out) + row_offset(p.out_strides, batch, head, i),
              p.out_strides.last, p.k_len);
  }
}

/// scale · w · (g − Σ w·g). Where a weight is 0 the gradient is not touched: it may be NaN under a
/// mask.
template <typename S>
void alibi_softmax_backward(const AlibiSoftmaxParams& p, int64_t begin, int64_t end,
                            void* scratch) {
  using T = compute_t<S>;
  T *grad = static_cast<T*>(scratch), *weight = grad + p.k_len;
  const T scale = static_cast<T>(p.scale);
  for (int64_t n = begin; n < end; ++n) {
    const int64_t i = n % p.q_len, head = n / p.q_len % p.heads, batch = n / p.q_len / p.heads;
    load_row(static_cast<const S*>(p.scores) + row_offset(p.score_strides, batch, head, i),
             p.score_strides.last, grad, p.k_len);
    load_row(static_cast<const S*>(p.weights_in) + row_offset(p.weight_strides, batch, head, i),
             p.weight_strides.last, weight, p.k_len);
    for (int64_t j = 0; j < p.k_len; ++j) {
      grad[j] = weight[j] == 0 ? T(0) : grad[j];
    }
    const T sum = dot(grad, weight, p.k_len);
    for (int64_t j = 0; j < p.k_len; ++j) {
      grad[j] = scale * weight[j] * (grad[j] - sum);
    }
    store_row(grad, static_cast<S*>(p.out) + row_offset(p.out_strides, batch, head, i),
              p.out_strides.last, p.k_len);
  }
}

template <typename S>
constexpr AlibiKernels kernels_of() {
  return {&alibi_bias<S>, &alibi_softmax<S>, &alibi_softmax_backward<S>};
}

}  // namespace

POSENC_DEFINE_ISA_TABLE(AlibiKernelTable, alibi_kernels,
                        {kernels_of<double>(), kernels_of<float>(), kernels_of<c10::BFloat16>(),
                         kernels_of<c10::Half>()})

}  // namespace posenc::bias
