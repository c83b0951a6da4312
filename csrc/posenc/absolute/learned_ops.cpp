#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <posenc/absolute/learned.h>
#include <posenc/absolute/learned_checks.h>
#include <posenc/absolute/learned_gradient.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor add_positions_backward(const at::Tensor& grad, c10::SymInt num_rows,
                                  const OptionalTensor& position_ids, c10::SymInt offset,
                                  int64_t seq_dim) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, c10::SymInt, const OptionalTensor&, c10::SymInt,
                               int64_t)>("posenc::_add_positions_backward");
  return op.call(grad, std::move(num_rows), position_ids, std::move(offset), seq_dim);
}

// ---- the formulas, as ATen calls that trace, batch and differentiate

// (1 or B, L) rows of the table.
at::Tensor table_rows(const at::Tensor& ids, const c10::SymInt& offset) {
  const at::Tensor rows = ids.to(at::kLong).add(at::Scalar(offset));
  return rows.dim() == 1 ? rows.unsqueeze(0) : rows;
}

at::Tensor add_positions_composite(const at::Tensor& x, const at::Tensor& weight,
                                   const OptionalTensor& position_ids, c10::SymInt offset,
                                   int64_t seq_dim) {
  const int64_t axis = check_add_positions(x, weight, position_ids, offset, seq_dim);
  const at::ScalarType compute = core::compute_dtype(x.scalar_type());
  // at::embedding, not indexing: a negative position must not count from the end.
  const at::Tensor rows = position_ids.has_value()
                              ? at::embedding(weight, table_rows(*position_ids, offset))
                              : weight.narrow_symint(0, offset, x.sym_size(axis)).unsqueeze(0);
  const at::Tensor sum = x.to(compute).add(broadcast_over(rows.to(compute), x, axis));
  return sum.to(x.scalar_type());
}

}  // namespace

at::Tensor add_positions_gradient(const at::Tensor& grad, c10::SymInt num_rows,
                                  const OptionalTensor& position_ids, c10::SymInt offset,
                                  int64_t seq_dim) {
  const int64_t axis = check_add_positions_backward(grad, num_rows, position_ids, offset, seq_dim);
  const int64_t batch_dim = core::batch_dim(axis, grad.dim());
  const bool per_batch = position_ids.has_value() && position_ids->dim() == 2 && batch_dim >= 0 &&
                         position_ids->sym_size(0) != 1;
  // Rows that share a position are summed first, in fp32, and rounded once at the end.
  at::DimVector shared;
  for (int64_t dim = 0; dim < grad.dim() - 1; ++dim) {
    if (dim != axis && !(per_batch && dim == batch_dim)) {
      shared.push_back(dim);
    }
  }
  const at::ScalarType compute = core::compute_dtype(grad.scalar_type());
  const at::Tensor sums =
      shared.empty() ? grad.to(compute) : at::sum(grad, shared, /*keepdim=*/false, compute);
  at::Tensor result;
  if (position_ids.has_value()) {
    at::Tensor rows = table_rows(*position_ids, offset);
    if (!per_batch) {
      rows = rows.select(0, 0);
    } else if (batch_dim > axis) {
      rows = rows.transpose(0, 1);
    }
    result = at::embedding_dense_backward_symint(sums, rows, num_rows, /*padding_idx=*/-1,
                                                 /*scale_grad_by_freq=*/false);
  } else {
    const c10::SymInt below = num_rows - offset - grad.sym_size(axis);
    result = at::constant_pad_nd_symint(sums, {0, 0, offset, below});
  }
  return result.to(grad.scalar_type());
}

namespace {

// ---- CPU: the sums are ATen's; what is ours is that a position outside the table is an error

at::Tensor add_positions_backward_cpu(const at::Tensor& grad, int64_t num_rows,
                                      const OptionalTensor& position_ids, int64_t offset,
                                      int64_t seq_dim) {
  if (position_ids.has_value()) {
    checked_ids("_add_positions_backward", "positions", *position_ids, offset, num_rows);
  }
  return add_positions_gradient(grad, num_rows, position_ids, offset, seq_dim);
}

// ---- Meta

at::Tensor add_positions_meta(const at::Tensor& x, const at::Tensor& weight,
                              const OptionalTensor& position_ids, c10::SymInt offset,
                              int64_t seq_dim) {
  check_add_positions(x, weight, position_ids, offset, seq_dim);
  return at::empty_like(x);
}

at::Tensor add_positions_backward_meta(const at::Tensor& grad, c10::SymInt num_rows,
                                       const OptionalTensor& position_ids, c10::SymInt offset,
                                       int64_t seq_dim) {
  check_add_positions_backward(grad, num_rows, position_ids, offset, seq_dim);
  return at::empty_symint({num_rows, grad.sym_size(-1)}, grad.options());
}

// ---- Autograd

class AddPositions : public torch::autograd::Function<AddPositions> {
 public:
  static constexpr bool is_traceable = true;  // compiled autograd

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, const OptionalTensor& position_ids,
                            c10::SymInt offset, int64_t seq_dim) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({core::value_or_undefined(position_ids)});
    ctx->saved_data["num_rows"] = weight.sym_size(0);
    ctx->saved_data["offset"] = offset;
    ctx->saved_data["seq_dim"] = seq_dim;
    return add_positions(x, weight, position_ids, offset, seq_dim);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor& grad = grads[0];
    at::Tensor grad_weight;
    if (grad.defined() && ctx->needs_input_grad(1)) {
      grad_weight = add_positions_backward(grad, ctx->saved_data["num_rows"].toSymInt(),
                                           core::optional_of(ctx->get_saved_variables()[0]),
                                           ctx->saved_data["offset"].toSymInt(),
                                           ctx->saved_data["seq_dim"].toInt());
    }
    return {grad, grad_weight, {}, {}, {}};
  }
};

at::Tensor add_positions_autograd(const at::Tensor& x, const at::Tensor& weight,
                                  const OptionalTensor& position_ids, c10::SymInt offset,
                                  int64_t seq_dim) {
  if (core::needs_composite({x, weight})) {
    return add_positions_composite(x, weight, position_ids, offset, seq_dim);
  }
  if (core::wants_grad({x, weight})) {
    return AddPositions::apply(x, weight, position_ids, offset, seq_dim);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return add_positions(x, weight, position_ids, offset, seq_dim);
}

at::Tensor add_positions_backward_autograd(const at::Tensor& grad, c10::SymInt num_rows,
                                           const OptionalTensor& position_ids, c10::SymInt offset,
                                           int64_t seq_dim) {
  if (core::needs_composite({grad}) || core::wants_grad({grad})) {
    return add_positions_gradient(grad, num_rows, position_ids, offset, seq_dim);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return add_positions_backward(grad, num_rows, position_ids, offset, seq_dim);
}

// ---- Autocast: as the sum x + table, the wider of the two dtypes

template <c10::DispatchKey key>
at::Tensor add_positions_autocast(const at::Tensor& x, const at::Tensor& weight,
                                  const OptionalTensor& position_ids, c10::SymInt offset,
                                  int64_t seq_dim) {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(key)};
  const at::ScalarType wide = c10::promoteTypes(x.scalar_type(), weight.scalar_type());
  return add_positions(x.to(wide), weight.to(wide), position_ids, offset, seq_dim);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "add_positions(Tensor x, Tensor weight, Tensor? position_ids=None, SymInt offset=0, int "
      "seq_dim=1) -> Tensor",
      tags);
  m.def(
      "_add_positions_backward(Tensor grad, SymInt num_rows, Tensor? position_ids, SymInt offset, "
      "int seq_dim) -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  m.impl("_add_positions_backward", TORCH_FN(add_positions_backward_cpu));
}
TORCH_LIBRARY_IMPL(posenc, Meta, m) {
  m.impl("add_positions", TORCH_FN(add_positions_meta));
  m.impl("_add_positions_backward", TORCH_FN(add_positions_backward_meta));
}
TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  m.impl("add_positions", TORCH_FN(add_positions_autograd));
  m.impl("_add_positions_backward", TORCH_FN(add_positions_backward_autograd));
}
TORCH_LIBRARY_IMPL(posenc, AutocastCPU, m) {
  m.impl("add_positions", TORCH_FN(add_positions_autocast<c10::DispatchKey::AutocastCPU>));
}
TORCH_LIBRARY_IMPL(posenc, AutocastCUDA, m) {
  m.impl("add_positions", TORCH_FN(add_positions_autocast<c10::DispatchKey::AutocastCUDA>));
}
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("add_positions", TORCH_FN(add_positions_composite));
  m.impl("_add_positions_backward", TORCH_FN(add_positions_gradient));
}
TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("add_positions", TORCH_FN(add_positions_composite));
  m.impl("_add_positions_backward", TORCH_FN(add_positions_gradient));
}

}  // namespace posenc::absolute
