// rotary_embedding_qkv: schema, and what serves every backend. The kernel (rotary_entries.h)
// writes rotated heads and v in one pass; elsewhere it is rotary_embedding of the front heads
// beside the others.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <posenc/rotary/rotary_qkv.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/library.h>

namespace posenc {
namespace rotary {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

#define POSENC_QKV_ARGS \
  at::ArrayRef<double> inv_freq, int64_t n_heads, int64_t n_kv_heads, POSENC_ROTARY_ARGS

Tensor rotate_and_join(const Tensor& qkv, POSENC_QKV_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  const int64_t rotated =
      check_rotary_qkv("rotary_embedding_qkv", qkv, n_heads, n_kv_heads, inv_freq.size(), args);
  const Tensor front = rotary_embedding(qkv.narrow(2, 0, rotated), inv_freq, POSENC_ROTARY_PASS);
  const c10::SymInt rest = qkv.sym_size(2) - rotated;
  return at::cat({front, qkv.narrow_symint(2, rotated, rest)}, 2);
}

struct RotaryQkvFunction : torch::autograd::Function<RotaryQkvFunction> {
  static constexpr bool is_traceable = true;  // compiled autograd

  static Tensor forward(AutogradContext* ctx, const Tensor& qkv,
                        const std::vector<double>& inv_freq, int64_t n_heads, int64_t n_kv_heads,
                        const RotaryArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({core::value_or_undefined(args.position_ids)});
    ctx->saved_data["inv_freq"] = inv_freq;
    ctx->saved_data["n_heads"] = n_heads;
    ctx->saved_data["n_kv_heads"] = n_kv_heads;
    save_args(ctx, args);
    return rotary_embedding_qkv(qkv, inv_freq, n_heads, n_kv_heads, POSENC_ROTARY_PASS_OF(args));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const RotaryArgs args = load_args(ctx, ctx->get_saved_variables()[0]).transposed();
    const Tensor grad = rotary_embedding_qkv(
        grads[0], ctx->saved_data["inv_freq"].toDoubleVector(), ctx->saved_data["n_heads"].toInt(),
        ctx->saved_data["n_kv_heads"].toInt(), POSENC_ROTARY_PASS_OF(args));
    return {grad, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor rotary_embedding_qkv_autograd(const Tensor& qkv, POSENC_QKV_ARGS) {
  if (core::needs_composite({qkv})) {
    return rotate_and_join(qkv, inv_freq, n_heads, n_kv_heads, POSENC_ROTARY_PASS);
  }
  if (core::wants_grad({qkv})) {
    return RotaryQkvFunction::apply(qkv, inv_freq.vec(), n_heads, n_kv_heads,
                                    make_args(POSENC_ROTARY_PASS));
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return rotary_embedding_qkv(qkv, inv_freq, n_heads, n_kv_heads, POSENC_ROTARY_PASS);
}

Tensor rotary_embedding_qkv_meta(const Tensor& qkv, POSENC_QKV_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_qkv("rotary_embedding_qkv", qkv, n_heads, n_kv_heads, inv_freq.size(), args);
  return at::empty_like(qkv);
}

// A rotation in place of the front heads, for every backend and transform.
Tensor& rotate_front_(Tensor& qkv, POSENC_QKV_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  const int64_t rotated =
      check_rotary_qkv("rotary_embedding_qkv_", qkv, n_heads, n_kv_heads, inv_freq.size(), args);
  Tensor front = qkv.narrow(2, 0, rotated);
  rotary_embedding_(front, inv_freq, POSENC_ROTARY_PASS);
  return qkv;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string rest =
      std::string(" qkv, float[] inv_freq, int n_heads, int n_kv_heads, ") + kSchemaRest;
  m.def(("rotary_embedding_qkv(Tensor" + rest + " -> Tensor").c_str(), tags);
  m.def(("rotary_embedding_qkv_(Tensor(a!)" + rest + " -> Tensor(a!)").c_str(), rotate_front_,
        tags);
}

TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("rotary_embedding_qkv", rotary_embedding_qkv_autograd);
}

TORCH_LIBRARY_IMPL(posenc, Meta, m) { m.impl("rotary_embedding_qkv", rotary_embedding_qkv_meta); }

TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("rotary_embedding_qkv", rotate_and_join);
  m.impl("rotary_embedding_qkv_", rotate_front_);
}

TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("rotary_embedding_qkv", rotate_and_join);
}

TORCH_LIBRARY_IMPL(posenc, Functionalize, m) { m.impl("rotary_embedding_qkv_", rotate_front_); }

}  // namespace rotary

at::Tensor rotary_embedding_qkv(const at::Tensor& qkv, at::ArrayRef<double> inv_freq,
                                int64_t n_heads, int64_t n_kv_heads, POSENC_ROTARY_ARGS) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, at::ArrayRef<double>, int64_t, int64_t,
                               POSENC_ROTARY_TYPES)>("posenc::rotary_embedding_qkv");
  return op.call(qkv, inv_freq, n_heads, n_kv_heads, POSENC_ROTARY_PASS);
}

at::Tensor& rotary_embedding_qkv_(at::Tensor& qkv, at::ArrayRef<double> inv_freq, int64_t n_heads,
                                  int64_t n_kv_heads, POSENC_ROTARY_ARGS) {
  static const auto op =
      core::find_op<at::Tensor&(at::Tensor&, at::ArrayRef<double>, int64_t, int64_t,
                                POSENC_ROTARY_TYPES)>("posenc::rotary_embedding_qkv_");
  return op.call(qkv, inv_freq, n_heads, n_kv_heads, POSENC_ROTARY_PASS);
}

}  // namespace posenc
