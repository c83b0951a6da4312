// Schemas of the ALiBi operators, and what serves every backend: Meta, Autograd, torch.func. CPU
// kernels register in alibi_cpu.cpp. Autocast needs no kernel: the loops compute in float32 and
// return the input's dtype.

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <posenc/bias/alibi.h>
#include <posenc/bias/alibi_args.h>
#include <posenc/bias/masked_softmax.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

namespace posenc::bias {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalSymInt = std::optional<c10::SymInt>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

c10::impl::ExcludeDispatchKeyGuard no_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

// ---- alibi_bias
// -------------------------------------------------------------------------------------------------------

Tensor bias_composite(const Tensor& slopes, c10::SymInt q_len, c10::SymInt k_len,
                      OptionalSymInt offset, bool is_causal, std::optional<at::ScalarType> dtype) {
  const auto guard = no_autocast();
  check_bias("alibi_bias", slopes, q_len, k_len, dtype);
  const at::ScalarType out = dtype.value_or(slopes.scalar_type()),
                       compute = core::compute_dtype(out);
  const Tensor distance =
      index_distance(q_len, k_len, offset.has_value() ? *offset : k_len - q_len, slopes.options())
          .squeeze(0)
          .squeeze(0);
  Tensor bias = slopes.to(compute).unsqueeze(-1).unsqueeze(-1) * distance.abs().neg().to(compute);
  if (is_causal) {
    bias = at::where(distance > 0,
                     at::full({}, -std::numeric_limits<double>::infinity(), bias.options()), bias);
  }
  return bias.to(out);
}

// The result is a dense matrix anyway, so the composite formula serves the gradient of the slopes
// as well.
Tensor bias_autograd(const Tensor& slopes, c10::SymInt q_len, c10::SymInt k_len,
                     OptionalSymInt offset, bool is_causal, std::optional<at::ScalarType> dtype) {
  if (core::needs_composite({slopes}) || core::wants_grad({slopes})) {
    return bias_composite(slopes, q_len, k_len, offset, is_causal, dtype);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return alibi_bias(slopes, q_len, k_len, offset, is_causal, dtype);
}

Tensor bias_meta(const Tensor& slopes, c10::SymInt q_len, c10::SymInt k_len, OptionalSymInt, bool,
                 std::optional<at::ScalarType> dtype) {
  check_bias("alibi_bias", slopes, q_len, k_len, dtype);
  return empty_bias(slopes, q_len, k_len, dtype);
}

// No tensor of the call says where the bias shall be. `device` does, as for ATen's factories, in
// the same place of the dispatcher: what watches or traces calls stands above it.
Tensor bias_of_device(at::ArrayRef<double> slopes, c10::SymInt q_len, c10::SymInt k_len,
                      OptionalSymInt offset, bool is_causal, std::optional<at::ScalarType> dtype,
                      std::optional<at::Device> device) {
  static const auto op = core::find_op<decltype(bias_of_device)>("posenc::alibi_bias");
  const auto key = c10::computeDispatchKey(dtype, /*layout=*/std::nullopt, device);
  return op.redispatch(c10::DispatchKeySet(key), slopes, std::move(q_len), std::move(k_len),
                       std::move(offset), is_causal, dtype, device);
}

// Meta, and devices without a kernel of ours.
Tensor bias_from_list(at::ArrayRef<double> slopes, c10::SymInt q_len, c10::SymInt k_len,
                      OptionalSymInt offset, bool is_causal, std::optional<at::ScalarType> dtype,
                      std::optional<at::Device> device) {
  const at::ScalarType out = bias_dtype(dtype);
  check_bias("alibi_bias", q_len, k_len, out);
  at::TensorOptions options = at::TensorOptions().dtype(core::compute_dtype(out)).device(device);
  return alibi_bias(core::float_list_tensor(slopes, options), q_len, k_len, offset, is_causal, out);
}

// ---- alibi_softmax
// ----------------------------------------------------------------------------------------------------

Tensor softmax_composite(const Tensor& scores, at::ArrayRef<double> slopes,
                         const OptionalTensor& mask, bool is_causal, double scale,
                         OptionalSymInt offset) {
  const auto guard = no_autocast();
  check_softmax("alibi_softmax", scores, static_cast<int64_t>(slopes.size()), mask);
  const c10::SymInt q_len = scores.sym_size(2), k_len = scores.sym_size(3);
  if (k_len == 0) {
    return at::zeros_like(scores);
  }
  const at::ScalarType compute = core::compute_dtype(scores.scalar_type());
  const Tensor distance =
      index_distance(q_len, k_len, offset.has_value() ? *offset : k_len - q_len, scores.options());
  const Tensor m =
      core::float_list_tensor(slopes, scores.options().dtype(compute)).unsqueeze(-1).unsqueeze(-1);
  Tensor allowed;
  if (is_causal) {
    allowed = distance <= 0;
  }
  if (mask.has_value()) {
    allowed = allowed.defined() ? allowed.logical_and(*mask) : *mask;
  }
  const Tensor biased = scores.to(compute) * scale - m * distance.abs().to(compute);
  return masked_softmax(biased, allowed).weights.to(scores.scalar_type());
}

Tensor softmax_backward_composite(const Tensor& grad, const Tensor& output, double scale) {
  const auto guard = no_autocast();
  check_softmax_backward(grad, output);
  const at::ScalarType compute = core::compute_dtype(output.scalar_type());
  const Tensor weight = output.to(compute);
  // Where a weight is 0 the gradient may be NaN, under a mask.
  const Tensor g = at::where(weight == 0, at::full({}, 0.0, weight.options()), grad.to(compute));
  return (weight * (g - (weight * g).sum(-1, /*keepdim=*/true)) * scale).to(output.scalar_type());
}

Tensor call_softmax_backward(const Tensor& grad, const Tensor& output, double scale) {
  static const auto op = core::find_op<Tensor(const Tensor&, const Tensor&, double)>(
      "posenc::_alibi_softmax_backward");
  return op.call(grad, output, scale);
}

struct SoftmaxFunction : torch::autograd::Function<SoftmaxFunction> {
  static constexpr bool is_traceable = true;  // compiled autograd

  static Tensor forward(AutogradContext* ctx, const Tensor& scores,
                        const std::vector<double>& slopes, const OptionalTensor& mask,
                        bool is_causal, double scale, const OptionalSymInt& offset) {
    at::AutoDispatchBelowADInplaceOrView guard;
    Tensor output = alibi_softmax(scores, slopes, mask, is_causal, scale, offset);
    ctx->save_for_backward({output});
    ctx->saved_data["scale"] = scale;
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    variable_list result(6);
    result[0] = call_softmax_backward(grads[0], saved[0], ctx->saved_data["scale"].toDouble());
    return result;
  }
};

Tensor softmax_autograd(const Tensor& scores, at::ArrayRef<double> slopes,
                        const OptionalTensor& mask, bool is_causal, double scale,
                        OptionalSymInt offset) {
  if (core::needs_composite({scores})) {
    return softmax_composite(scores, slopes, mask, is_causal, scale, offset);
  }
  if (core::wants_grad({scores})) {
    return SoftmaxFunction::apply(scores, slopes.vec(), mask, is_causal, scale, offset);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return alibi_softmax(scores, slopes, mask, is_causal, scale, offset);
}

Tensor softmax_backward_autograd(const Tensor& grad, const Tensor& output, double scale) {
  if (core::needs_composite({grad, output}) || core::wants_grad({grad, output})) {
    return softmax_backward_composite(grad, output, scale);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_softmax_backward(grad, output, scale);
}

Tensor softmax_meta(const Tensor& scores, at::ArrayRef<double> slopes, const OptionalTensor& mask,
                    bool, double, OptionalSymInt) {
  check_softmax("alibi_softmax", scores, static_cast<int64_t>(slopes.size()), mask);
  return at::empty_like(scores);
}

Tensor softmax_backward_meta(const Tensor& grad, const Tensor& output, double) {
  check_softmax_backward(grad, output);
  return at::empty_like(output);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "alibi_bias(float[] slopes, SymInt q_len, SymInt k_len, SymInt? offset=None, bool "
      "is_causal=False, *, ScalarType? "
      "dtype=None, Device? device=None) -> Tensor",
      tags);
  m.def(
      "alibi_bias.Tensor(Tensor slopes, SymInt q_len, SymInt k_len, SymInt? offset=None, bool "
      "is_causal=False, *, "
      "ScalarType? dtype=None) -> Tensor",
      tags);
  m.def(
      "alibi_softmax(Tensor scores, float[] slopes, Tensor? mask=None, bool is_causal=False, float "
      "scale=1., SymInt? "
      "offset=None) -> Tensor",
      tags);
  m.def("_alibi_softmax_backward(Tensor grad, Tensor output, float scale) -> Tensor", tags);
}

TORCH_LIBRARY_IMPL(posenc, BackendSelect, m) { m.impl("alibi_bias", bias_of_device); }

// torch.jit.trace cannot write down a call with a device among its arguments.
TORCH_LIBRARY_IMPL(posenc, Tracer, m) { m.impl("alibi_bias", bias_from_list); }

TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("alibi_bias.Tensor", bias_autograd);
  m.impl("alibi_softmax", softmax_autograd);
  m.impl("_alibi_softmax_backward", softmax_backward_autograd);
}

TORCH_LIBRARY_IMPL(posenc, Meta, m) {
  m.impl("alibi_bias", bias_from_list);
  m.impl("alibi_bias.Tensor", bias_meta);
  m.impl("alibi_softmax", softmax_meta);
  m.impl("_alibi_softmax_backward", softmax_backward_meta);
}

TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("alibi_bias.Tensor", bias_composite);
  m.impl("alibi_softmax", softmax_composite);
  m.impl("_alibi_softmax_backward", softmax_backward_composite);
}

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("alibi_bias", bias_from_list);
  m.impl("alibi_bias.Tensor", bias_composite);
  m.impl("alibi_softmax", softmax_composite);
  m.impl("_alibi_softmax_backward", softmax_backward_composite);
}

}  // namespace posenc::bias
