#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace posenc::core {

/// The dtypes that every operator computes in: float64, float32, bfloat16, float16. TypeError
/// otherwise.
inline void check_floating(const char* op, const char* name, const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
      op, ": expected ", name, " of dtype float64, float32, bfloat16 or float16, got ", dtype);
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, op, ": expected ", name,
                   " to be a dense tensor, got layout ", tensor.layout());
}

/// Same dtype and device as the first tensor of the call.
inline void check_same(const char* op, const char* name, const at::Tensor& tensor,
                       const char* first_name, const at::Tensor& first) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == first.scalar_type(), op, ": expected ", name, " of ",
                   first_name, "'s dtype ", first.scalar_type(), ", got ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.device() == first.device(), op, ": expected ", name, " on ", first_name,
                    "'s device ", first.device(), ", got ", tensor.device());
}

/// `dim` counted from the front. ValueError outside [-rank, rank).
inline int64_t wrap_dim(const char* op, const char* name, int64_t dim, int64_t rank) {
  TORCH_CHECK_VALUE(dim >= -rank && dim < rank, op, ": expected ", name, " in [", -rank, ", ",
                    rank - 1, "] for a tensor of ", rank, " axes, got ", dim);
  return dim < 0 ? dim + rank : dim;
}

/// A size that is one number in every call of a program, as the number of channels is. Tensor::size
/// would make the other sizes of a traced tensor fixed numbers along with it.
inline int64_t fixed_size(const at::Tensor& tensor, int64_t dim) {
  return tensor.sym_size(dim).guard_int(__FILE__, __LINE__);
}

/// The dtype in which the loops compute: float64 for float64, float32 for everything else.
inline at::ScalarType compute_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace posenc::core
