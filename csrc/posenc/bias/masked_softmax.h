#pragma once

// Masks and softmax as the operators of this house understand them, in differentiable ATen calls.

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

namespace posenc::bias {

/// A bool mask, True = keep, that broadcasts to (B, H, L, S). TypeError for another dtype, naming
/// both conventions in use.
void check_mask(const char* op, const at::Tensor& mask, const c10::SymInt& batch,
                const c10::SymInt& heads, const c10::SymInt& q_len, const c10::SymInt& k_len,
                const at::Device& device);

struct MaskedSoftmax {
  at::Tensor weights;  ///< the scores' shape; a row without an allowed key is 0
  at::Tensor lse;      ///< without the last axis; −infinity for such a row
};

/// Softmax over the last axis (which is not empty) of what `allowed` allows; undefined allows all.
/// Scores that are not allowed are replaced, so NaN there does not come through, nor into
/// gradients.
MaskedSoftmax masked_softmax(at::Tensor scores, const at::Tensor& allowed);

/// 0 · NaN is NaN: what is not finite in v, (B, H, S, D), becomes 0 there and NaN in the weights,
/// (B, H, L, S), of the rows that may see its key, so that it reaches no others.
void isolate_broken(const at::Tensor& allowed, at::Tensor& weights, at::Tensor& v);

/// (1, 1, L, S) key index − query index − offset.
at::Tensor index_distance(const c10::SymInt& q_len, const c10::SymInt& k_len,
                          const c10::SymInt& offset, const at::TensorOptions& options);

}  // namespace posenc::bias
