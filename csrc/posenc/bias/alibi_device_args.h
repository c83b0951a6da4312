#pragma once

// From tensors to the parameters of the CUDA kernels; needs no CUDA, so that tests on the host run
// the kernels with the very same ones.

#include <ATen/core/Tensor.h>
#include <posenc/bias/alibi_softmax_device.h>

#include <algorithm>

namespace posenc::bias {

/// Strides of a (B, H, L, S) tensor; 0 along an axis of one element, where any would do.
inline ScoreStrides score_strides(const at::Tensor& t) {
  const auto stride = [&](int64_t axis) { return t.size(axis) == 1 ? 0 : t.stride(axis); };
  return {stride(0), stride(1), stride(2), t.size(3) == 1 ? 1 : t.stride(3)};
}

/// Whether rows of k_len elements can be read `count` at a time: they are dense, and each begins at
/// a multiple of that many bytes.
inline bool takes_packs(const at::Tensor& t, const ScoreStrides& s, int64_t count) {
  const auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return t.size(3) % count == 0 && s.last == 1 && s.batch % count == 0 && s.head % count == 0 &&
         s.row % count == 0 && address % (count * t.element_size()) == 0;
}

/// out (…, q_len, k_len) contiguous and not empty; slopes of the compute type, contiguous.
inline AlibiBiasDeviceParams bias_device_params(const at::Tensor& slopes, int64_t q_len,
                                                int64_t k_len, int64_t offset, bool causal,
                                                const at::Tensor& out) {
  AlibiBiasDeviceParams p{};
  p.out = out.mutable_data_ptr();
  p.slopes = slopes.const_data_ptr();
  p.rows = slopes.numel() * q_len;
  p.q_len = q_len;
  p.k_len = k_len;
  p.offset = offset;
  p.causal = causal;
  const at::Tensor rows = out.view({1, 1, p.rows, k_len});
  p.packed = takes_packs(rows, score_strides(rows), 16 / out.element_size());
  return p;
}

/// Scores and out of one shape (B, H, L, S), H at most kMaxHeads; mask expanded to it, or
/// undefined.
inline AlibiSoftmaxDeviceParams softmax_device_params(const at::Tensor& scores,
                                                      at::ArrayRef<double> slopes,
                                                      const at::Tensor& mask, bool causal,
                                                      double scale, int64_t offset,
                                                      const at::Tensor& out) {
  AlibiSoftmaxDeviceParams p{};
  p.scores = scores.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.score_strides = score_strides(scores);
  p.out_strides = score_strides(out);
  p.heads = scores.size(1);
  p.q_len = scores.size(2);
  p.k_len = scores.size(3);
  p.rows = scores.size(0) * p.heads * p.q_len;
  p.offset = offset;
  p.scale = scale;
  p.causal = causal;
  const int64_t count = 16 / scores.element_size();
  p.packed = takes_packs(scores, p.score_strides, count) && takes_packs(out, p.out_strides, count);
  if (mask.defined()) {
    p.mask = mask.const_data_ptr<bool>();
    p.mask_strides = score_strides(mask);
    p.mask_packed = takes_packs(mask, p.mask_strides, count);
  }
  std::copy(slopes.begin(), slopes.end(), p.slopes);
  return p;
}

/// All of one shape and dtype.
inline AlibiSoftmaxDeviceParams softmax_backward_device_params(const at::Tensor& grad,
                                                               const at::Tensor& weights,
                                                               double scale,
                                                               const at::Tensor& out) {
  AlibiSoftmaxDeviceParams p = softmax_device_params(grad, {}, {}, false, scale, 0, out);
  p.weights_in = weights.const_data_ptr();
  p.weight_strides = score_strides(weights);
  p.packed = p.packed && takes_packs(weights, p.weight_strides, 16 / out.element_size());
  return p;
}

}  // namespace posenc::bias
