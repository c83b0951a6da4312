#include <posenc/core/dispatch.h>

#include <ATen/TracerMode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace posenc::core {

namespace {

bool in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

}  // namespace

bool needs_composite(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors) {
  if (in_transform()) {
    return true;
  }
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor._fw_grad(/*level=*/0).defined()) {
      return true;
    }
  }
  return false;
}

bool wants_grad(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors) {
  if (!c10::GradMode::is_enabled()) {
    return false;
  }
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) {
      return true;
    }
  }
  return false;
}

at::Tensor float_list_tensor(at::ArrayRef<double> values, const at::TensorOptions& options) {
  if (values.empty()) {
    return at::empty({0}, options);
  }
  // With nobody watching the calls, one copy or one kernel in place of an operator for each number.
  const bool watched = in_transform() || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
                       at::tracer::impl::is_dispatch_enabled();
  if (!watched && options.device().is_cpu()) {
    return at::tensor(values, options);
  }
#if defined(POSENC_WITH_CUDA)
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  if (!watched && options.device().is_cuda() && (dtype == at::kDouble || dtype == at::kFloat)) {
    return float_list_on_gpu(values, options);
  }
#endif
  std::vector<at::Tensor> scalars;
  scalars.reserve(values.size());
  for (double value : values) {
    scalars.push_back(at::scalar_tensor(value, options));
  }
  return at::stack(scalars);
}

}  // namespace posenc::core
