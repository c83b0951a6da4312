#pragma once

// What the host hands to the loops of alibi_simd.cpp: numbers and pointers, no tensor.

#include <c10/core/ScalarType.h>
#include <posenc/bias/score_strides.h>
#include <posenc/core/isa.h>

#include <cstdint>

namespace posenc::bias {

struct AlibiBiasParams {
  void* out;             ///< (sets, q_len, k_len), contiguous
  const double* slopes;  ///< one per set
  int64_t q_len, k_len, offset;
  bool causal;
};

struct AlibiSoftmaxParams {
  const void* scores;      ///< backward: the gradient
  const void* weights_in;  ///< backward: the forward's output
  void* out;
  ScoreStrides score_strides, weight_strides, out_strides;
  const bool* mask;  ///< nullptr: none
  ScoreStrides mask_strides;
  const double* slopes;  ///< (H)
  int64_t heads, q_len, k_len, offset;
  bool causal;
  double scale;
};

struct AlibiKernels {
  /// Rows [begin, end) of (sets × q_len); scratch holds k_len numbers of the compute type.
  using Bias = void (*)(const AlibiBiasParams&, int64_t begin, int64_t end, void* scratch);
  /// Rows [begin, end) of (B × H × q_len); scratch holds 2·k_len numbers of the compute type.
  using Softmax = void (*)(const AlibiSoftmaxParams&, int64_t begin, int64_t end, void* scratch);
  Bias bias;
  Softmax softmax, softmax_backward;
};

struct AlibiKernelTable {
  AlibiKernels f64, f32, bf16, f16;

  const AlibiKernels& of(at::ScalarType dtype) const {
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
POSENC_DECLARE_ISA_TABLE(AlibiKernelTable, alibi_kernels)

}  // namespace posenc::bias
