#pragma once

// Checks and outputs of the ALiBi operators, shared by Meta, CPU and the composites.

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>

namespace posenc::bias {

/// The dtype of a bias that comes from a list of slopes.
at::ScalarType bias_dtype(std::optional<at::ScalarType> dtype);

void check_bias(const char* op, const c10::SymInt& q_len, const c10::SymInt& k_len,
                at::ScalarType dtype);
void check_bias(const char* op, const at::Tensor& slopes, const c10::SymInt& q_len,
                const c10::SymInt& k_len, std::optional<at::ScalarType> dtype);
at::Tensor empty_bias(const at::Tensor& slopes, const c10::SymInt& q_len, const c10::SymInt& k_len,
                      std::optional<at::ScalarType> dtype);

void check_softmax(const char* op, const at::Tensor& scores, int64_t n_slopes,
                   const std::optional<at::Tensor>& mask);
void check_softmax_backward(const at::Tensor& grad, const at::Tensor& output);

}  // namespace posenc::bias
