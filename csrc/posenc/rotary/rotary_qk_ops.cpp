// rotary_embedding_qk: schema, and what serves every backend. Whatever is no plain call
// (transforms, tangents, one gradient of two, a device without a kernel of ours) is two calls of
// rotary_embedding, which knows what to do.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <posenc/rotary/rotary_qk.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace posenc {
namespace rotary {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Pair = std::tuple<Tensor, Tensor>;

Pair rotate_each(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                 POSENC_ROTARY_ARGS) {
  return {rotary_embedding(q, inv_freq, POSENC_ROTARY_PASS),
          rotary_embedding(k, inv_freq, POSENC_ROTARY_PASS)};
}

Pair rotate_each_(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                  POSENC_ROTARY_ARGS) {
  Tensor q_out = q, k_out = k;
  rotary_embedding_(q_out, inv_freq, POSENC_ROTARY_PASS);
  rotary_embedding_(k_out, inv_freq, POSENC_ROTARY_PASS);
  return {q_out, k_out};
}

// The gradient of a rotation is the rotation by the negative angle; autograd may know, or want,
// that of one output alone.
struct RotaryQkFunction : torch::autograd::Function<RotaryQkFunction> {
  static constexpr bool is_traceable = true;  // compiled autograd

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const std::vector<double>& inv_freq, const RotaryArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({core::value_or_undefined(args.position_ids)});
    ctx->saved_data["inv_freq"] = inv_freq;
    save_args(ctx, args);
    auto [q_out, k_out] = rotary_embedding_qk(q, k, inv_freq, POSENC_ROTARY_PASS_OF(args));
    return {q_out, k_out};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const RotaryArgs args = load_args(ctx, ctx->get_saved_variables()[0]).transposed();
    const std::vector<double> inv_freq = ctx->saved_data["inv_freq"].toDoubleVector();
    const bool q_wanted = grads[0].defined() && ctx->needs_input_grad(0);
    const bool k_wanted = grads[1].defined() && ctx->needs_input_grad(1);
    Tensor q_grad, k_grad;
    if (q_wanted && k_wanted) {
      std::tie(q_grad, k_grad) =
          rotary_embedding_qk(grads[0], grads[1], inv_freq, POSENC_ROTARY_PASS_OF(args));
    } else if (q_wanted) {
      q_grad = rotary_embedding(grads[0], inv_freq, POSENC_ROTARY_PASS_OF(args));
    } else if (k_wanted) {
      k_grad = rotary_embedding(grads[1], inv_freq, POSENC_ROTARY_PASS_OF(args));
    }
    return {q_grad, k_grad, Tensor(), Tensor()};
  }
};

Pair rotary_embedding_qk_autograd(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                                  POSENC_ROTARY_ARGS) {
  const bool composite = core::needs_composite({q, k});
  const bool q_wants = core::wants_grad({q}), k_wants = core::wants_grad({k});
  if (composite || q_wants != k_wants) {
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    check_rotary_qk("rotary_embedding_qk", q, k, inv_freq.size(), args);
    return rotate_each(q, k, inv_freq, POSENC_ROTARY_PASS);
  }
  if (q_wants) {
    const variable_list out =
        RotaryQkFunction::apply(q, k, inv_freq.vec(), make_args(POSENC_ROTARY_PASS));
    return {out[0], out[1]};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return rotary_embedding_qk(q, k, inv_freq, POSENC_ROTARY_PASS);
}

Pair rotary_embedding_qk_autograd_(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                                   POSENC_ROTARY_ARGS) {
  if (core::needs_composite({q, k}) || core::wants_grad({q, k})) {
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    check_rotary_qk("rotary_embedding_qk_", q, k, inv_freq.size(), args);
    return rotate_each_(q, k, inv_freq, POSENC_ROTARY_PASS);
  }
  at::AutoDispatchBelowAutograd guard;
  return rotary_embedding_qk_(q, k, inv_freq, POSENC_ROTARY_PASS);
}

Pair rotary_embedding_qk_meta(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                              POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_qk("rotary_embedding_qk", q, k, inv_freq.size(), args);
  return {at::empty_like(q), at::empty_like(k)};
}

Pair rotary_embedding_qk_meta_(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                               POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_qk("rotary_embedding_qk_", q, k, inv_freq.size(), args);
  return {q, k};
}

// torch.func and devices without a kernel of ours.
Pair rotary_embedding_qk_fallback(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                                  POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_qk("rotary_embedding_qk", q, k, inv_freq.size(), args);
  return rotate_each(q, k, inv_freq, POSENC_ROTARY_PASS);
}

Pair rotary_embedding_qk_fallback_(const Tensor& q, const Tensor& k, at::ArrayRef<double> inv_freq,
                                   POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_qk("rotary_embedding_qk_", q, k, inv_freq.size(), args);
  return rotate_each_(q, k, inv_freq, POSENC_ROTARY_PASS);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string rest = kSchemaRest;
  m.def(
      ("rotary_embedding_qk(Tensor q, Tensor k, float[] inv_freq, " + rest + " -> (Tensor, Tensor)")
          .c_str(),
      tags);
  m.def(("rotary_embedding_qk_(Tensor(a!) q, Tensor(b!) k, float[] inv_freq, " + rest +
         " -> (Tensor(a!), Tensor(b!))")
            .c_str(),
        tags);
}

TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("rotary_embedding_qk", rotary_embedding_qk_autograd);
  m.impl("rotary_embedding_qk_", rotary_embedding_qk_autograd_);
}

TORCH_LIBRARY_IMPL(posenc, ADInplaceOrView, m) {
  m.impl("rotary_embedding_qk_", torch::autograd::autogradNotImplementedInplaceOrViewFallback());
}

TORCH_LIBRARY_IMPL(posenc, Meta, m) {
  m.impl("rotary_embedding_qk", rotary_embedding_qk_meta);
  m.impl("rotary_embedding_qk_", rotary_embedding_qk_meta_);
}

TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("rotary_embedding_qk", rotary_embedding_qk_fallback);
  m.impl("rotary_embedding_qk_", rotary_embedding_qk_fallback_);
}

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("rotary_embedding_qk", rotary_embedding_qk_fallback);
  m.impl("rotary_embedding_qk_", rotary_embedding_qk_fallback_);
}

TORCH_LIBRARY_IMPL(posenc, Functionalize, m) {
  m.impl("rotary_embedding_qk_", rotary_embedding_qk_fallback_);
}

}  // namespace rotary

std::tuple<at::Tensor, at::Tensor> rotary_embedding_qk(const at::Tensor& q, const at::Tensor& k,
                                                       at::ArrayRef<double> inv_freq,
                                                       POSENC_ROTARY_ARGS) {
  static const auto op = core::find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, at::ArrayRef<double>, POSENC_ROTARY_TYPES)>(
      "posenc::rotary_embedding_qk");
  return op.call(q, k, inv_freq, POSENC_ROTARY_PASS);
}

std::tuple<at::Tensor, at::Tensor> rotary_embedding_qk_(const at::Tensor& q, const at::Tensor& k,
                                                        at::ArrayRef<double> inv_freq,
                                                        POSENC_ROTARY_ARGS) {
  static const auto op = core::find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, at::ArrayRef<double>, POSENC_ROTARY_TYPES)>(
      "posenc::rotary_embedding_qk_");
  return op.call(q, k, inv_freq, POSENC_ROTARY_PASS);
}

}  // namespace posenc
