#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <posenc/absolute/encoding.h>
#include <posenc/absolute/sinusoidal.h>
#include <posenc/absolute/sinusoidal_checks.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// ---- sinusoidal_encoding

at::Tensor sinusoidal_encoding_meta(const at::Tensor& position_ids, c10::ArrayRef<double> inv_freq,
                                    int64_t d_model, bool /*interleaved*/,
                                    std::optional<at::ScalarType> dtype) {
  const at::ScalarType result = check_sinusoidal_encoding(position_ids, inv_freq, d_model, dtype);
  std::vector<c10::SymInt> shape = position_ids.sym_sizes().vec();
  shape.emplace_back(d_model);
  return at::empty_symint(shape, position_ids.options().dtype(result));
}

at::Tensor sinusoidal_encoding_composite(const at::Tensor& position_ids,
                                         c10::ArrayRef<double> inv_freq, int64_t d_model,
                                         bool interleaved, std::optional<at::ScalarType> dtype) {
  const at::ScalarType result = check_sinusoidal_encoding(position_ids, inv_freq, d_model, dtype);
  return composite_encoding(position_ids, inv_freq, d_model, interleaved, result);
}

at::Tensor sinusoidal_encoding_autograd(const at::Tensor& position_ids,
                                        c10::ArrayRef<double> inv_freq, int64_t d_model,
                                        bool interleaved, std::optional<at::ScalarType> dtype) {
  // Only real positions carry a gradient (a diffusion time step); they are few, so the composite
  // formula serves.
  if (core::needs_composite({position_ids}) || core::wants_grad({position_ids})) {
    return sinusoidal_encoding_composite(position_ids, inv_freq, d_model, interleaved, dtype);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return sinusoidal_encoding(position_ids, inv_freq, d_model, interleaved, dtype);
}

// ---- add_sinusoidal

at::Tensor add_sinusoidal_meta(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                               const OptionalTensor& position_ids, c10::SymInt /*offset*/,
                               int64_t seq_dim, bool /*interleaved*/, double /*scale*/) {
  check_add_sinusoidal(x, inv_freq, position_ids, seq_dim);
  return at::empty_like(x);
}

at::Tensor add_sinusoidal_composite(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                                    const OptionalTensor& position_ids, c10::SymInt offset,
                                    int64_t seq_dim, bool interleaved, double scale) {
  const int64_t axis = check_add_sinusoidal(x, inv_freq, position_ids, seq_dim);
  const at::ScalarType compute = core::compute_dtype(x.scalar_type());
  const at::Tensor positions =
      core::position_tensor(position_ids, offset, x.sym_size(axis), x.options()).select(0, 0);
  const at::Tensor rows =
      composite_encoding(positions, inv_freq, x.sym_size(-1), interleaved, compute);
  const at::Tensor sum = x.to(compute).mul(scale).add(broadcast_over(rows, x, axis));
  return sum.to(x.scalar_type());
}

class AddSinusoidal : public torch::autograd::Function<AddSinusoidal> {
 public:
  static constexpr bool is_traceable = true;  // compiled autograd

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            c10::ArrayRef<double> inv_freq, const OptionalTensor& position_ids,
                            c10::SymInt offset, int64_t seq_dim, bool interleaved, double scale) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->saved_data["scale"] = scale;
    return add_sinusoidal(x, inv_freq, position_ids, offset, seq_dim, interleaved, scale);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const double scale = ctx->saved_data["scale"].toDouble();
    const at::Tensor& grad = grads[0];
    return {scale == 1. || !grad.defined() ? grad : grad.mul(scale), {}, {}, {}, {}, {}, {}};
  }
};

at::Tensor add_sinusoidal_autograd(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                                   const OptionalTensor& position_ids, c10::SymInt offset,
                                   int64_t seq_dim, bool interleaved, double scale) {
  const at::Tensor ids = core::value_or_undefined(position_ids);
  if (core::needs_composite({x, ids}) || core::wants_grad({ids})) {
    return add_sinusoidal_composite(x, inv_freq, position_ids, offset, seq_dim, interleaved, scale);
  }
  if (core::wants_grad({x})) {
    return AddSinusoidal::apply(x, inv_freq, position_ids, offset, seq_dim, interleaved, scale);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return add_sinusoidal(x, inv_freq, position_ids, offset, seq_dim, interleaved, scale);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "sinusoidal_encoding(Tensor position_ids, float[] inv_freq, int d_model, bool "
      "interleaved=True, ScalarType? dtype=None) -> Tensor",
      tags);
  m.def(
      "add_sinusoidal(Tensor x, float[] inv_freq, Tensor? position_ids=None, SymInt offset=0, int "
      "seq_dim=1, bool interleaved=True, float scale=1.) -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(posenc, Meta, m) {
  m.impl("sinusoidal_encoding", TORCH_FN(sinusoidal_encoding_meta));
  m.impl("add_sinusoidal", TORCH_FN(add_sinusoidal_meta));
}
TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("sinusoidal_encoding", TORCH_FN(sinusoidal_encoding_autograd));
  m.impl("add_sinusoidal", TORCH_FN(add_sinusoidal_autograd));
}
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("sinusoidal_encoding", TORCH_FN(sinusoidal_encoding_composite));
  m.impl("add_sinusoidal", TORCH_FN(add_sinusoidal_composite));
}
TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("sinusoidal_encoding", TORCH_FN(sinusoidal_encoding_composite));
  m.impl("add_sinusoidal", TORCH_FN(add_sinusoidal_composite));
}

}  // namespace posenc::absolute
