#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <initializer_list>

namespace posenc::core {

/// Typed handle of an operator; keep it in a function-local static.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

/// An undefined tensor for a missing optional one, as save_for_backward takes it.
inline at::Tensor value_or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

/// The reverse: what the schema's `Tensor?` wants.
inline std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

/// True where a C++ autograd Function cannot serve and the composite formula (ATen calls alone)
/// must: under a torch.func transform, which refuses C++ Functions, and for a forward-mode tangent,
/// which they would lose.
bool needs_composite(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors);

/// True where a gradient is to be recorded for one of the tensors.
bool wants_grad(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors);

/// The numbers as a tensor made of traceable calls only: `at::tensor(list)` writes into memory
/// behind the tracers' back.
at::Tensor float_list_tensor(at::ArrayRef<double> values, const at::TensorOptions& options);

/// The same on a GPU for float64 and float32, by one kernel for 256 numbers; a CUDA graph holds it.
/// Only where the library is built with CUDA.
at::Tensor float_list_on_gpu(at::ArrayRef<double> values, const at::TensorOptions& options);

}  // namespace posenc::core
