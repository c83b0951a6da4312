// Schemas of the rotary operators, and what serves every backend: Meta, Autograd, torch.func,
// functionalisation. CPU kernels register in rotary_cpu.cpp.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <posenc/core/dispatch.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_args.h>
#include <posenc/rotary/rotary_composite.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace posenc {
namespace rotary {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments after x and inv_freq, in the schema's order.
#define POSENC_ROTARY_ARGS                                                                   \
  const OptionalTensor &position_ids, c10::SymInt offset, int64_t seq_dim, bool interleaved, \
      std::optional<bool> interleaved_out, int64_t rotary_start, double attention_factor,    \
      at::OptionalIntArrayRef axes, bool inverse
#define POSENC_ROTARY_PASS                                                                     \
  position_ids, offset, seq_dim, interleaved, interleaved_out, rotary_start, attention_factor, \
      axes, inverse

Tensor call(const Tensor& x, at::ArrayRef<double> inv_freq, const RotaryArgs& a) {
  return rotary_embedding(x, inv_freq, a.position_ids, a.offset, a.seq_dim, a.interleaved,
                          a.interleaved_out, a.rotary_start, a.attention_factor, a.axes_ref(),
                          a.inverse);
}

Tensor call(const Tensor& x, const Tensor& inv_freq, const RotaryArgs& a) {
  return rotary_embedding(x, inv_freq, a.position_ids, a.offset, a.seq_dim, a.interleaved,
                          a.interleaved_out, a.rotary_start, a.attention_factor, a.axes_ref(),
                          a.inverse);
}

/// The arguments across forward and backward; position_ids travels as a saved variable.
void save(AutogradContext* ctx, const RotaryArgs& args) {
  ctx->saved_data["offset"] = args.offset;
  ctx->saved_data["seq_dim"] = args.seq_dim;
  ctx->saved_data["interleaved"] = args.interleaved;
  ctx->saved_data["interleaved_out"] = args.layout_out();
  ctx->saved_data["rotary_start"] = args.rotary_start;
  ctx->saved_data["attention_factor"] = args.attention_factor;
  ctx->saved_data["axes"] = args.axes.has_value() ? c10::IValue(*args.axes) : c10::IValue();
  ctx->saved_data["inverse"] = args.inverse;
}

RotaryArgs load(AutogradContext* ctx, const Tensor& position_ids) {
  auto& data = ctx->saved_data;
  RotaryArgs args;
  args.position_ids = core::optional_of(position_ids);
  args.offset = data["offset"].toSymInt();
  args.seq_dim = data["seq_dim"].toInt();
  args.interleaved = data["interleaved"].toBool();
  args.interleaved_out = data["interleaved_out"].toBool();
  args.rotary_start = data["rotary_start"].toInt();
  args.attention_factor = data["attention_factor"].toDouble();
  if (!data["axes"].isNone()) {
    args.axes = data["axes"].toIntVector();
  }
  args.inverse = data["inverse"].toBool();
  return args;
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
    save(ctx, args);
    return call(x, inv_freq, args);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const RotaryArgs args = load(ctx, ctx->get_saved_variables()[0]);
    const std::vector<double> inv_freq = ctx->saved_data["inv_freq"].toDoubleVector();
    return {call(grads[0], inv_freq, args.transposed()), Tensor(), Tensor()};
  }
};

struct RotaryTensorFunction : torch::autograd::Function<RotaryTensorFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& inv_freq,
                        const RotaryArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, inv_freq, core::value_or_undefined(args.position_ids)});
    save(ctx, args);
    return call(x, inv_freq, args);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &inv_freq = saved[1];
    const RotaryArgs args = load(ctx, saved[2]);
    Tensor x_grad, freq_grad;
    if (ctx->needs_input_grad(0)) {
      x_grad = call(grads[0], inv_freq, args.transposed());
    }
    if (ctx->needs_input_grad(1)) {
      freq_grad = inv_freq_grad(grads[0], call(x, inv_freq, args), inv_freq, args);
    }
    return {x_grad, freq_grad, Tensor()};
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
    check_rotary("rotary_embedding.Tensor", x, inv_freq.size(-1), args);
    check_freq_tensor("rotary_embedding.Tensor", x, inv_freq, args);
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
  TORCH_CHECK_VALUE(inv_freq.dim() >= 1,
                    "rotary_embedding.Tensor: expected inv_freq of shape (n), (B, 1, n) or (1, H, "
                    "n), got a scalar");
  check_rotary("rotary_embedding.Tensor", x, inv_freq.size(-1), args);
  check_freq_tensor("rotary_embedding.Tensor", x, inv_freq, args);
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
  check_rotary("rotary_embedding.Tensor", x, inv_freq.size(-1), args);
  check_freq_tensor("rotary_embedding.Tensor", x, inv_freq, args);
  return rotary_embedding_composite(x, inv_freq, args);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string rest =
      "Tensor? position_ids=None, SymInt offset=0, int seq_dim=1, bool interleaved=True, bool? "
      "interleaved_out=None, "
      "int rotary_start=0, float attention_factor=1., int[]? axes=None, bool inverse=False)";
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
                            const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                            int64_t seq_dim, bool interleaved, std::optional<bool> interleaved_out,
                            int64_t rotary_start, double attention_factor,
                            at::OptionalIntArrayRef axes, bool inverse) {
  static const auto op = core::find_op<at::Tensor(
      const at::Tensor&, at::ArrayRef<double>, const std::optional<at::Tensor>&, c10::SymInt,
      int64_t, bool, std::optional<bool>, int64_t, double, at::OptionalIntArrayRef, bool)>(
      "posenc::rotary_embedding");
  return op.call(x, inv_freq, POSENC_ROTARY_PASS);
}

at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& inv_freq,
                            const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                            int64_t seq_dim, bool interleaved, std::optional<bool> interleaved_out,
                            int64_t rotary_start, double attention_factor,
                            at::OptionalIntArrayRef axes, bool inverse) {
  static const auto op = core::find_op<at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::SymInt, int64_t,
      bool, std::optional<bool>, int64_t, double, at::OptionalIntArrayRef, bool)>(
      "posenc::rotary_embedding", "Tensor");
  return op.call(x, inv_freq, POSENC_ROTARY_PASS);
}

at::Tensor& rotary_embedding_(at::Tensor& x, at::ArrayRef<double> inv_freq,
                              const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                              int64_t seq_dim, bool interleaved,
                              std::optional<bool> interleaved_out, int64_t rotary_start,
                              double attention_factor, at::OptionalIntArrayRef axes, bool inverse) {
  static const auto op =
      core::find_op<at::Tensor&(at::Tensor&, at::ArrayRef<double>, const std::optional<at::Tensor>&,
                                c10::SymInt, int64_t, bool, std::optional<bool>, int64_t, double,
                                at::OptionalIntArrayRef, bool)>("posenc::rotary_embedding_");
  return op.call(x, inv_freq, POSENC_ROTARY_PASS);
}

}  // namespace posenc
