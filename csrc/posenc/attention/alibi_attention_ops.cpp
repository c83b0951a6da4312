// Schemas of the biased attention operators and what serves every backend: Meta, Autograd,
// Autocast, torch.func. What computes: alibi_attention_cpu.cpp, alibi_attention_cuda.cpp.

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <posenc/attention/alibi_attention.h>
#include <posenc/attention/alibi_attention_composite.h>
#include <posenc/attention/attention_backend.h>
#include <posenc/attention/attention_kernels.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

namespace posenc::attention {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
/// Whatever is computed here is computed in the inputs' dtypes, as Meta says: autocast has had its
/// turn.
c10::impl::ExcludeDispatchKeyGuard no_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

Tensor slope_tensor(const Tensor& q, SlopeList slopes) {
  return core::float_list_tensor(slopes, q.options().dtype(core::compute_dtype(q.scalar_type())));
}
Tensor slope_tensor(const Tensor&, const Tensor& slopes) { return slopes; }

template <typename Slopes>
Pair call_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                  const AttentionArgs& a) {
  return alibi_attention(q, k, v, slopes, a.mask, a.is_causal, a.scale, a.offset, a.q_positions,
                         a.k_positions, a.key_norms);
}

Grads call_backward(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q,
                    const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                    SlopeList slopes, const AttentionArgs& a) {
  static const auto op =
      core::find_op<Grads(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, const Tensor&, SlopeList,
                          POSENC_ATTENTION_REST)>("posenc::_alibi_attention_backward");
  return op.call(grad_out, grad_lse, q, k, v, out, lse, slopes, a.mask, a.is_causal, a.scale,
                 a.offset, a.q_positions, a.k_positions);
}

SlopeGrads call_backward(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q,
                         const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                         const Tensor& slopes, const AttentionArgs& a) {
  static const auto op = core::find_op<SlopeGrads(
      const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&,
      const Tensor&, const Tensor&, const Tensor&, POSENC_ATTENTION_REST)>(
      "posenc::_alibi_attention_backward", "Tensor");
  return op.call(grad_out, grad_lse, q, k, v, out, lse, slopes, a.mask, a.is_causal, a.scale,
                 a.offset, a.q_positions, a.k_positions);
}

// ---- Autograd
// -------------------------------------------------------------------------------------------------------

void save(AutogradContext* ctx, const AttentionArgs& args) {
  ctx->saved_data["is_causal"] = args.is_causal;
  ctx->saved_data["scale"] = args.scale.has_value() ? c10::IValue(*args.scale) : c10::IValue();
  ctx->saved_data["offset"] = args.offset.has_value() ? c10::IValue(*args.offset) : c10::IValue();
}

AttentionArgs load(AutogradContext* ctx, const Tensor& mask, const Tensor& q_positions,
                   const Tensor& k_positions) {
  auto& data = ctx->saved_data;
  AttentionArgs args;
  args.mask = core::optional_of(mask);
  args.is_causal = data["is_causal"].toBool();
  if (!data["scale"].isNone()) {
    args.scale = data["scale"].toDouble();
  }
  if (!data["offset"].isNone()) {
    args.offset = data["offset"].toSymInt();
  }
  args.q_positions = core::optional_of(q_positions);
  args.k_positions = core::optional_of(k_positions);
  return args;
}

/// Saved: q, k, v, out, lse, mask, q_positions, k_positions, and the slopes where they are a
/// tensor.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static constexpr bool is_traceable = true;  // compiled autograd

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const Tensor& v, const std::vector<double>& slopes,
                               const AttentionArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    auto [out, lse] = call_forward(q, k, v, SlopeList(slopes), args);
    ctx->save_for_backward({q, k, v, out, lse, core::value_or_undefined(args.mask),
                            core::value_or_undefined(args.q_positions),
                            core::value_or_undefined(args.k_positions)});
    ctx->saved_data["slopes"] = slopes;
    save(ctx, args);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    if (!grads[0].defined() && !grads[1].defined()) {
      return variable_list(5);
    }
    const AttentionArgs args = load(ctx, saved[5], saved[6], saved[7]);
    const std::vector<double> slopes = ctx->saved_data["slopes"].toDoubleVector();
    const Tensor grad_out = grads[0].defined() ? grads[0] : at::zeros_like(saved[3]);
    auto [dq, dk, dv] = call_backward(grad_out, core::optional_of(grads[1]), saved[0], saved[1],
                                      saved[2], saved[3], saved[4], SlopeList(slopes), args);
    return {dq, dk, dv, Tensor(), Tensor()};
  }
};

struct AttentionTensorFunction : torch::autograd::Function<AttentionTensorFunction> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& slopes, const AttentionArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    auto [out, lse] = call_forward(q, k, v, slopes, args);
    ctx->save_for_backward({q, k, v, out, lse, core::value_or_undefined(args.mask),
                            core::value_or_undefined(args.q_positions),
                            core::value_or_undefined(args.k_positions), slopes});
    save(ctx, args);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    if (!grads[0].defined() && !grads[1].defined()) {
      return variable_list(5);
    }
    const AttentionArgs args = load(ctx, saved[5], saved[6], saved[7]);
    const Tensor grad_out = grads[0].defined() ? grads[0] : at::zeros_like(saved[3]);
    auto [dq, dk, dv, dslopes] =
        call_backward(grad_out, core::optional_of(grads[1]), saved[0], saved[1], saved[2], saved[3],
                      saved[4], saved[8], args);
    return {dq, dk, dv, dslopes, Tensor()};
  }
};

template <typename Slopes>
Pair composite_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                       const AttentionArgs& args) {
  const auto guard = no_autocast();
  check_attention(kForward, q, k, v, args);
  check_slopes_of(kForward, q, slopes);
  return attention_composite(q, k, v, slope_tensor(q, slopes), args);
}

Pair attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                        POSENC_ATTENTION_ARGS) {
  const AttentionArgs args = POSENC_MAKE_ARGS;
  if (core::needs_composite({q, k, v})) {
    return composite_forward(q, k, v, slopes, args);
  }
  if (core::wants_grad({q, k, v})) {
    const variable_list result = AttentionFunction::apply(q, k, v, slopes.vec(), args);
    return {result[0], result[1]};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_forward(q, k, v, slopes, args);
}

Pair attention_tensor_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& slopes, POSENC_ATTENTION_ARGS) {
  const AttentionArgs args = POSENC_MAKE_ARGS;
  if (core::needs_composite({q, k, v, slopes})) {
    return composite_forward(q, k, v, slopes, args);
  }
  if (core::wants_grad({q, k, v, slopes})) {
    const variable_list result = AttentionTensorFunction::apply(q, k, v, slopes, args);
    return {result[0], result[1]};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_forward(q, k, v, slopes, args);
}

// The backward's own derivative is that of the dense formula. out and lse count as functions of q,
// k, v (as which they were saved), so no gradient goes to them.
Grads backward_autograd(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        SlopeList slopes, POSENC_ATTENTION_REST) {
  const AttentionArgs args = POSENC_MAKE_BACKWARD_ARGS;
  const Tensor dlse = core::value_or_undefined(grad_lse);
  if (core::needs_composite({grad_out, dlse, q, k, v}) ||
      core::wants_grad({grad_out, dlse, q, k, v})) {
    const auto no_cast = no_autocast();
    auto [dq, dk, dv, dslopes] =
        attention_backward_composite(grad_out, grad_lse, q, k, v, slope_tensor(q, slopes), args);
    return {dq, dk, dv};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_backward(grad_out, grad_lse, q, k, v, out, lse, slopes, args);
}

SlopeGrads backward_tensor_autograd(const Tensor& grad_out, const OptionalTensor& grad_lse,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& out, const Tensor& lse, const Tensor& slopes,
                                    POSENC_ATTENTION_REST) {
  const AttentionArgs args = POSENC_MAKE_BACKWARD_ARGS;
  const Tensor dlse = core::value_or_undefined(grad_lse);
  if (core::needs_composite({grad_out, dlse, q, k, v, slopes}) ||
      core::wants_grad({grad_out, dlse, q, k, v, slopes})) {
    const auto no_cast = no_autocast();
    return attention_backward_composite(grad_out, grad_lse, q, k, v, slopes, args);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_backward(grad_out, grad_lse, q, k, v, out, lse, slopes, args);
}

// ---- Composite, for torch.func and devices without a kernel
// ------------------------------------------------------------

Pair attention_fallback(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                        POSENC_ATTENTION_ARGS) {
  return composite_forward(q, k, v, slopes, POSENC_MAKE_ARGS);
}

Pair attention_tensor_fallback(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& slopes, POSENC_ATTENTION_ARGS) {
  return composite_forward(q, k, v, slopes, POSENC_MAKE_ARGS);
}

Grads backward_fallback(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                        SlopeList slopes, POSENC_ATTENTION_REST) {
  const auto no_cast = no_autocast();
  auto [dq, dk, dv, dslopes] = attention_backward_composite(
      grad_out, grad_lse, q, k, v, slope_tensor(q, slopes), POSENC_MAKE_BACKWARD_ARGS);
  return {dq, dk, dv};
}

SlopeGrads backward_tensor_fallback(const Tensor& grad_out, const OptionalTensor& grad_lse,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor&, const Tensor&, const Tensor& slopes,
                                    POSENC_ATTENTION_REST) {
  const auto no_cast = no_autocast();
  return attention_backward_composite(grad_out, grad_lse, q, k, v, slopes,
                                      POSENC_MAKE_BACKWARD_ARGS);
}

// ---- Meta
// -----------------------------------------------------------------------------------------------------------------

template <typename Slopes>
Pair meta_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                  const AttentionArgs& args) {
  check_attention(kForward, q, k, v, args);
  check_slopes_of(kForward, q, slopes);
  return {empty_output(q, v), empty_lse(q)};
}

Pair attention_meta(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                    POSENC_ATTENTION_ARGS) {
  return meta_forward(q, k, v, slopes, POSENC_MAKE_ARGS);
}

Pair attention_tensor_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slopes,
                           POSENC_ATTENTION_ARGS) {
  return meta_forward(q, k, v, slopes, POSENC_MAKE_ARGS);
}

Grads backward_meta(const Tensor&, const OptionalTensor&, const Tensor& q, const Tensor& k,
                    const Tensor& v, const Tensor&, const Tensor&, SlopeList,
                    POSENC_ATTENTION_REST) {
  check_attention(kBackward, q, k, v, POSENC_MAKE_BACKWARD_ARGS);
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
}

SlopeGrads backward_tensor_meta(const Tensor&, const OptionalTensor&, const Tensor& q,
                                const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                                const Tensor& slopes, POSENC_ATTENTION_REST) {
  check_attention(kBackward, q, k, v, POSENC_MAKE_BACKWARD_ARGS);
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v), at::empty_like(slopes)};
}

// ---- Autocast: q, k and v as scaled_dot_product_attention has them
// ---------------------------------------------------------

template <c10::DeviceType device, typename Slopes>
Pair cast_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                  const AttentionArgs& args) {
  const auto guard = no_autocast();
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const Tensor& x) { return at::autocast::cached_cast(dtype, x, device); };
  return call_forward(cast(q), cast(k), cast(v), slopes, args);
}

template <c10::DeviceType device>
Pair attention_autocast(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                        POSENC_ATTENTION_ARGS) {
  return cast_forward<device>(q, k, v, slopes, POSENC_MAKE_ARGS);
}

template <c10::DeviceType device>
Pair attention_tensor_autocast(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& slopes, POSENC_ATTENTION_ARGS) {
  return cast_forward<device>(q, k, v, slopes, POSENC_MAKE_ARGS);
}

Tensor blocks_meta(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                   POSENC_ATTENTION_ARGS) {
  check_attention("alibi_attention_blocks", q, k, v, POSENC_MAKE_ARGS);
  check_slopes_of("alibi_attention_blocks", q, slopes);
  return at::empty({4}, q.options().dtype(at::kLong));
}

// ---- Key norms
// ------------------------------------------------------------------------------------------------------------------

Tensor key_norms_meta(const Tensor& k, const Tensor& v) {
  check_key_norms(k, v);
  return at::empty_symint(
      {k.sym_size(0), k.sym_size(1), (k.sym_size(2) + (kKeyBlock - 1)) / kKeyBlock},
      k.options().dtype(core::compute_dtype(k.scalar_type())));
}

Tensor key_norms_composite(const Tensor& k, const Tensor& v) {
  check_key_norms(k, v);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::ScalarType dtype = core::compute_dtype(k.scalar_type());
  const Tensor wide = k.detach().to(dtype);
  // (B, Hkv, S): the bound of one key, a little above its norm.
  Tensor norm = wide.square().sum(-1).sqrt() * (1 + 1e-4) + 1e-15;
  const Tensor bad = (v.detach() - v.detach()).ne(0).any(-1).logical_or(norm.ne(norm));
  norm = at::where(bad, at::full({}, kInfinity, norm.options()), norm);
  const c10::SymInt length = k.sym_size(2), blocks = (length + (kKeyBlock - 1)) / kKeyBlock;
  norm = at::constant_pad_nd_symint(norm, {0, blocks * kKeyBlock - length}, 0);
  return norm.reshape_symint({k.sym_size(0), k.sym_size(1), blocks, kKeyBlock}).amax(-1);
}

Tensor key_norms_autograd(const Tensor& k, const Tensor& v) {
  if (core::needs_composite({k, v})) {
    return key_norms_composite(k, v);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return alibi_key_norms(k, v);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string rest =
      "Tensor? mask=None, bool is_causal=False, float? scale=None, SymInt? offset=None, Tensor? "
      "q_positions=None, "
      "Tensor? k_positions=None";
  const std::string forward_rest = rest + ", Tensor? key_norms=None) -> ";
  m.def(("alibi_attention(Tensor q, Tensor k, Tensor v, float[] slopes, " + forward_rest +
         "(Tensor out, Tensor lse)")
            .c_str(),
        tags);
  m.def(("alibi_attention.Tensor(Tensor q, Tensor k, Tensor v, Tensor slopes, " + forward_rest +
         "(Tensor out, Tensor lse)")
            .c_str(),
        tags);
  const std::string backward =
      "Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, ";
  m.def(("_alibi_attention_backward(" + backward + "float[] slopes, " + rest +
         ") -> (Tensor, Tensor, Tensor)")
            .c_str(),
        tags);
  m.def(("_alibi_attention_backward.Tensor(" + backward + "Tensor slopes, " + rest +
         ") -> (Tensor, Tensor, Tensor, Tensor)")
            .c_str(),
        tags);
  m.def("alibi_key_norms(Tensor k, Tensor v) -> Tensor", tags);
  m.def(("alibi_attention_blocks(Tensor q, Tensor k, Tensor v, float[] slopes, " + forward_rest +
         "Tensor")
            .c_str(),
        tags);
}

TORCH_LIBRARY_IMPL(posenc, Meta, m) {
  m.impl("alibi_attention", attention_meta);
  m.impl("alibi_attention.Tensor", attention_tensor_meta);
  m.impl("_alibi_attention_backward", backward_meta);
  m.impl("_alibi_attention_backward.Tensor", backward_tensor_meta);
  m.impl("alibi_key_norms", key_norms_meta);
  m.impl("alibi_attention_blocks", blocks_meta);
}

TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("alibi_attention", attention_autograd);
  m.impl("alibi_attention.Tensor", attention_tensor_autograd);
  m.impl("_alibi_attention_backward", backward_autograd);
  m.impl("_alibi_attention_backward.Tensor", backward_tensor_autograd);
  m.impl("alibi_key_norms", key_norms_autograd);
}

TORCH_LIBRARY_IMPL(posenc, AutocastCPU, m) {
  m.impl("alibi_attention", attention_autocast<at::kCPU>);
  m.impl("alibi_attention.Tensor", attention_tensor_autocast<at::kCPU>);
}

TORCH_LIBRARY_IMPL(posenc, AutocastCUDA, m) {
  m.impl("alibi_attention", attention_autocast<at::kCUDA>);
  m.impl("alibi_attention.Tensor", attention_tensor_autocast<at::kCUDA>);
}

TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("alibi_attention", attention_fallback);
  m.impl("alibi_attention.Tensor", attention_tensor_fallback);
  m.impl("_alibi_attention_backward", backward_fallback);
  m.impl("_alibi_attention_backward.Tensor", backward_tensor_fallback);
  m.impl("alibi_key_norms", key_norms_composite);
}

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("alibi_attention", attention_fallback);
  m.impl("alibi_attention.Tensor", attention_tensor_fallback);
  m.impl("_alibi_attention_backward", backward_fallback);
  m.impl("_alibi_attention_backward.Tensor", backward_tensor_fallback);
  m.impl("alibi_key_norms", key_norms_composite);
}

}  // namespace posenc::attention
