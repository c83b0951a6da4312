// Schemas of the rotary operators, and what serves every backend: Meta, Autograd, torch.func,
// functionalisation. Kernels register in rotary_entries_*.cpp, rotary_cpu.cpp and rotary_cuda.cpp.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <posenc/core/checks.h>
#include <posenc/rotary/rotary_composite.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace posenc {
namespace rotary {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor call(const Tensor& x, at::ArrayRef<double> inv_freq, const RotaryArgs& args) {
  return rotary_embedding(x, inv_freq, POSENC_ROTARY_PASS_OF(args));
}

Tensor call(const Tensor& x, const Tensor& inv_freq, const RotaryArgs& args) {
  return rotary_embedding(x, inv_freq, POSENC_ROTARY_PASS_OF(args));
}

// The transpose of a rotation is a rotation, so the backward is the operator itself and every order
// of derivative exists.
struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static constexpr bool is_traceable = true;  // compiled autograd

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::vector<double>& inv_freq,
                        const RotaryArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({core::value_or_undefined(args.position_ids)});
    ctx->saved_data["inv_freq"] = inv_freq;
    save_args(ctx, args);
    return call(x, inv_freq, args);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const RotaryArgs args = load_args(ctx, ctx->get_saved_variables()[0]);
    const std::vector<double> inv_freq = ctx->saved_data["inv_freq"].toDoubleVector();
    return {call(grads[0], inv_freq, args.transposed()), Tensor(), Tensor()};
  }
};

struct RotaryTensorFunction : torch::autograd::Function<RotaryTensorFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& inv_freq,
                        const RotaryArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // x is kept for the gradient of the frequencies alone.
    ctx->save_for_backward({inv_freq.requires_grad() ? x : Tensor(), inv_freq,
                            core::value_or_undefined(args.position_ids)});
    save_args(ctx, args);
    return call(x, inv_freq, args);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &inv_freq = saved[1];
    const RotaryArgs args = load_args(ctx, saved[2]);
    const Tensor x_grad = call(grads[0], inv_freq, args.transposed());
    Tensor freq_grad;
    if (ctx->needs_input_grad(1)) {
      freq_grad = inv_freq_grad(x_grad, x, inv_freq, args);
    }
    return {ctx->needs_input_grad(0) ? x_grad : Tensor(), freq_grad, Tensor()};
  }
};

Tensor rotary_embedding_autograd(const Tensor& x, at::ArrayRef<double> inv_freq,
                                 POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  if (core::needs_composite({x})) {
    check_rotary("rotary_embedding", x, inv_freq.size(), args);
    return rotary_embedding_composite(
        x, core::float_list_tensor(inv_freq, x.options().dtype(at::kDouble)), args);
  }
  if (core::wants_grad({x})) {
    return RotaryFunction::apply(x, inv_freq.vec(), args);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call(x, inv_freq, args);
}

Tensor rotary_embedding_tensor_autograd(const Tensor& x, const Tensor& inv_freq,
                                        POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  if (core::needs_composite({x, inv_freq})) {
    check_rotary_tensor(x, inv_freq, args);
    return rotary_embedding_composite(x, inv_freq, args);
  }
  if (core::wants_grad({x, inv_freq})) {
    return RotaryTensorFunction::apply(x, inv_freq, args);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call(x, inv_freq, args);
}

// In place, where something must be recorded or traced: out of place and a copy, whose history
// copy_ keeps.
Tensor& rotary_embedding_by_copy_(Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  return x.copy_(rotary_embedding(x, inv_freq, POSENC_ROTARY_PASS));
}

Tensor& rotary_embedding_autograd_(Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  if (core::needs_composite({x}) || core::wants_grad({x})) {
    return rotary_embedding_by_copy_(x, inv_freq, POSENC_ROTARY_PASS);
  }
  at::AutoDispatchBelowAutograd guard;
  return rotary_embedding_(x, inv_freq, POSENC_ROTARY_PASS);
}

Tensor rotary_embedding_meta(const Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary("rotary_embedding", x, inv_freq.size(), args);
  return at::empty_like(x);
}

Tensor rotary_embedding_tensor_meta(const Tensor& x, const Tensor& inv_freq, POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_tensor(x, inv_freq, args);
  return at::empty_like(x);
}

Tensor& rotary_embedding_meta_(Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary("rotary_embedding_", x, inv_freq.size(), args);
  return x;
}

// torch.func and devices without a kernel of ours.
Tensor rotary_embedding_fallback(const Tensor& x, at::ArrayRef<double> inv_freq,
                                 POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary("rotary_embedding", x, inv_freq.size(), args);
  const auto dtype = x.device().is_mps() ? at::kFloat : at::kDouble;
  return rotary_embedding_composite(x, core::float_list_tensor(inv_freq, x.options().dtype(dtype)),
                                    args);
}

Tensor rotary_embedding_tensor_fallback(const Tensor& x, const Tensor& inv_freq,
                                        POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_tensor(x, inv_freq, args);
  return rotary_embedding_composite(x, inv_freq, args);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string rest = kSchemaRest;
  m.def(("rotary_embedding(Tensor x, float[] inv_freq, " + rest + " -> Tensor").c_str(), tags);
  m.def(("rotary_embedding.Tensor(Tensor x, Tensor inv_freq, " + rest + " -> Tensor").c_str(),
        tags);
  m.def(("rotary_embedding_(Tensor(a!) x, float[] inv_freq, " + rest + " -> Tensor(a!)").c_str(),
        tags);
}

TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("rotary_embedding", rotary_embedding_autograd);
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_autograd);
  m.impl("rotary_embedding_", rotary_embedding_autograd_);
}

TORCH_LIBRARY_IMPL(posenc, ADInplaceOrView, m) {
  m.impl("rotary_embedding_", torch::autograd::autogradNotImplementedInplaceOrViewFallback());
}

TORCH_LIBRARY_IMPL(posenc, Meta, m) {
  m.impl("rotary_embedding", rotary_embedding_meta);
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_meta);
  m.impl("rotary_embedding_", rotary_embedding_meta_);
}

TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("rotary_embedding", rotary_embedding_fallback);
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_fallback);
  m.impl("rotary_embedding_", rotary_embedding_by_copy_);
}

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("rotary_embedding", rotary_embedding_fallback);
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_fallback);
  m.impl("rotary_embedding_", rotary_embedding_by_copy_);
}

TORCH_LIBRARY_IMPL(posenc, Functionalize, m) {
  m.impl("rotary_embedding_", rotary_embedding_by_copy_);
}

}  // namespace rotary

at::Tensor rotary_embedding(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                            POSENC_ROTARY_ARGS) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, at::ArrayRef<double>, POSENC_ROTARY_TYPES)>(
          "posenc::rotary_embedding");
  return op.call(x, inv_freq, POSENC_ROTARY_PASS);
}

at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& inv_freq, POSENC_ROTARY_ARGS) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, const at::Tensor&, POSENC_ROTARY_TYPES)>(
          "posenc::rotary_embedding", "Tensor");
  return op.call(x, inv_freq, POSENC_ROTARY_PASS);
}

at::Tensor& rotary_embedding_(at::Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  static const auto op =
      core::find_op<at::Tensor&(at::Tensor&, at::ArrayRef<double>, POSENC_ROTARY_TYPES)>(
          "posenc::rotary_embedding_");
  return op.call(x, inv_freq, POSENC_ROTARY_PASS);
}

}  // namespace posenc
