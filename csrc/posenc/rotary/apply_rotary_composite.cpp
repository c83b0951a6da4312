#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/zeros.h>
#include <posenc/core/checks.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/apply_rotary.h>
#include <posenc/rotary/rotary_composite.h>

namespace posenc::rotary {
namespace {

/// (T, w) or (B, L, w) → the rows of this call, (B or 1, L, w).
at::Tensor gather_rows(const at::Tensor& table, const at::Tensor& x, const TableArgs& args) {
  if (args.rows) {
    return table;
  }
  const auto& ids = args.rotary.position_ids;
  if (!ids.has_value()) {
    return table.narrow_symint(0, 0, x.sym_size(args.rotary.seq_dim)).unsqueeze(0);
  }
  at::Tensor rows = table.index_select(0, ids->reshape({-1}).to(at::kLong));
  std::vector<c10::SymInt> shape = ids->sym_sizes().vec();
  shape.push_back(table.sym_size(-1));
  rows = rows.reshape_symint(shape);
  return rows.dim() == 2 ? rows.unsqueeze(0) : rows;
}

/// The reverse, summed: (B or 1, L, w) → the table's shape.
at::Tensor scatter_rows(const at::Tensor& grad_rows, const at::Tensor& table,
                        const TableArgs& args) {
  if (args.rows) {
    at::Tensor grad = grad_rows;
    if (table.sym_size(0) == 1 && grad.sym_size(0) != 1) {
      grad = grad.sum({0}, /*keepdim=*/true);
    }
    return grad.to(table.scalar_type());
  }
  const auto& ids = args.rotary.position_ids;
  at::Tensor grad = grad_rows;
  // Positions that all rows of the batch share: sum the batch first.
  const bool per_row = ids.has_value() && ids->dim() == 2 && ids->sym_size(0) != 1;
  if (!per_row && grad.sym_size(0) != 1) {
    grad = grad.sum({0}, /*keepdim=*/true);
  }
  const c10::SymInt width = table.sym_size(-1);
  grad = grad.reshape_symint({grad.sym_size(0) * grad.sym_size(1), width});
  if (!ids.has_value()) {
    const c10::SymInt rest = table.sym_size(0) - grad.sym_size(0);
    grad = at::cat({grad, at::zeros_symint({rest, width}, grad.options())});
  } else {
    const at::Tensor rows = ids->reshape({-1}).to(at::kLong);
    const at::Tensor zeros = at::zeros_symint(table.sym_sizes(), grad.options());
    // On CUDA index_add adds in whatever order its atomics come; index_put sorts the rows first.
    grad = zeros.is_cuda()
               ? zeros.index_put(c10::List<std::optional<at::Tensor>>({rows}), grad, true)
               : zeros.index_add(0, rows, grad);
  }
  return grad.to(table.scalar_type());
}

/// A row's columns for the first and the second channel of each pair.
std::pair<at::Tensor, at::Tensor> columns(const at::Tensor& rows, const TableArgs& args) {
  if (!args.wide) {
    return {rows, rows};
  }
  return split_pairs(rows, args.n, 0, args.rotary.interleaved);
}

/// Sums an (…, n) tensor shaped like x to (B, L, n).
at::Tensor sum_to_rows(at::Tensor t, int64_t rank, int64_t seq_dim) {
  const int64_t batch = core::batch_dim(seq_dim, rank);
  std::vector<int64_t> heads;
  for (int64_t d = 0; d < rank - 1; ++d) {
    if (d != batch && d != seq_dim) {
      heads.push_back(d);
    }
  }
  if (!heads.empty()) {
    t = t.sum(heads);
  }
  if (batch < 0) {
    return t.unsqueeze(0);
  }
  return seq_dim < batch ? t.transpose(0, 1) : t;
}

}  // namespace

at::Tensor apply_rotary_composite(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                  const TableArgs& args) {
  auto [cos_lo, cos_hi] =
      columns(align_rows(gather_rows(cos, x, args), x.dim(), args.rotary.seq_dim), args);
  auto [sin_lo, sin_hi] =
      columns(align_rows(gather_rows(sin, x, args), x.dim(), args.rotary.seq_dim), args);
  return args.rotary.inverse ? rotate_by(x, cos_lo, sin_hi.neg(), cos_hi, sin_lo.neg(), args.rotary)
                             : rotate_by(x, cos_lo, sin_lo, cos_hi, sin_hi, args.rotary);
}

std::pair<at::Tensor, at::Tensor> table_grads(const at::Tensor& grad, const at::Tensor& x,
                                              const at::Tensor& cos, const at::Tensor& sin,
                                              const TableArgs& args) {
  const RotaryArgs& r = args.rotary;
  const at::ScalarType compute = core::compute_dtype(x.scalar_type());
  auto [a, b] = split_pairs(x.to(compute), args.n, r.rotary_start, r.interleaved);
  auto [grad_lo, grad_hi] = split_pairs(grad.to(compute), args.n, r.rotary_start, r.layout_out());
  const auto reduce = [&](const at::Tensor& t) { return sum_to_rows(t, x.dim(), r.seq_dim); };
  at::Tensor cos_lo = reduce(grad_lo * a), cos_hi = reduce(grad_hi * b);
  // Forward: lo −= b·sin_lo, hi += a·sin_hi. The inverse is the transpose: lo += b·sin_hi, hi −=
  // a·sin_lo.
  at::Tensor sin_lo = reduce(r.inverse ? grad_hi * a : grad_lo * b).neg();
  at::Tensor sin_hi = reduce(r.inverse ? grad_lo * b : grad_hi * a);
  at::Tensor cos_rows, sin_rows;
  if (!args.wide) {
    cos_rows = cos_lo + cos_hi;
    sin_rows = sin_lo + sin_hi;
  } else {
    cos_rows = join_pairs(cos_lo, cos_hi, r.interleaved);
    sin_rows = join_pairs(sin_lo, sin_hi, r.interleaved);
  }
  return {scatter_rows(cos_rows, cos, args), scatter_rows(sin_rows, sin, args)};
}

}  // namespace posenc::rotary
