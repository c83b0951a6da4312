// Schema of apply_rotary, its checks, Meta, Autograd and torch.func. The CPU kernel registers in
// apply_rotary_cpu.cpp.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/apply_rotary.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_composite.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace posenc {
namespace rotary {

TableArgs check_apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                             const std::optional<at::Tensor>& position_ids, int64_t seq_dim,
                             bool interleaved, std::optional<bool> interleaved_out,
                             int64_t rotary_start, bool inverse, bool doubled) {
  const char* op = "apply_rotary";
  core::check_floating(op, "cos", cos);
  core::check_floating(op, "sin", sin);
  TORCH_CHECK_VALUE(cos.sym_sizes() == sin.sym_sizes(), op,
                    ": expected cos and sin of one shape, got ", cos.sym_sizes(), " and ",
                    sin.sym_sizes());
  TORCH_CHECK_VALUE(cos.device() == x.device() && sin.device() == x.device(), op,
                    ": expected cos and sin on x's device ", x.device(), ", got ", cos.device(),
                    " and ", sin.device());
  TORCH_CHECK_VALUE(cos.dim() == 2 || cos.dim() == 3, op,
                    ": expected cos and sin of shape (T, w), or gathered rows (B, L, w), got ",
                    cos.sym_sizes());
  TableArgs args;
  args.rotary = make_args(position_ids, 0, seq_dim, interleaved, interleaved_out, rotary_start, 1.0,
                          std::nullopt, inverse);
  args.rows = cos.dim() == 3;
  // Whether a table is doubled is told, not guessed: for a partial rotation both readings can fit
  // the same widths.
  const int64_t width = core::fixed_size(cos, -1);
  TORCH_CHECK_VALUE(!doubled || width % 2 == 0, op,
                    ": expected doubled tables of an even width, got ", width);
  TORCH_CHECK_VALUE(doubled || x.dim() < 1 || rotary_start <= x.sym_size(-1) - 2 * width, op,
                    ": expected cos and sin of one column a pair, at most ",
                    (x.sym_size(-1) - rotary_start) / 2, " for head_dim ", x.sym_size(-1), ", got ",
                    width,
                    "; tables that repeat each frequency for both channels, as transformers makes "
                    "them, need doubled=True");
  args.wide = doubled;
  args.n = doubled ? width / 2 : width;
  check_rotary(op, x, args.n, args.rotary);
  const c10::SymInt length = x.sym_size(args.rotary.seq_dim);
  if (args.rows) {
    const int64_t batch_axis = core::batch_dim(args.rotary.seq_dim, x.dim());
    const c10::SymInt batch = batch_axis < 0 ? c10::SymInt(1) : x.sym_size(batch_axis);
    TORCH_CHECK_VALUE(!position_ids.has_value(), op,
                      ": expected no position_ids with gathered rows of cos and sin of shape ",
                      cos.sym_sizes(), "; give tables (T, w) to be indexed");
    TORCH_CHECK_VALUE(
        (cos.sym_size(0) == 1 || cos.sym_size(0) == batch) && cos.sym_size(1) == length, op,
        ": expected gathered rows of shape (1, ", length, ", w) or (", batch, ", ", length,
        ", w) for x of shape ", x.sym_sizes(), " with time on axis ", args.rotary.seq_dim, ", got ",
        cos.sym_sizes());
  } else if (position_ids.has_value()) {
    TORCH_CHECK_TYPE(c10::isIntegralType(position_ids->scalar_type(), false), op,
                     ": expected integer position_ids to index the tables, got ",
                     position_ids->scalar_type());
  } else {
    TORCH_CHECK_INDEX(cos.sym_size(0) >= length, op, ": expected tables of at least ", length,
                      " rows for ", length, " positions, got ", cos.sym_size(0));
  }
  return args;
}

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

#define POSENC_TABLE_ARGS                                                                    \
  const Tensor &x, const Tensor &cos, const Tensor &sin, const OptionalTensor &position_ids, \
      int64_t seq_dim, bool interleaved, std::optional<bool> interleaved_out,                \
      int64_t rotary_start, bool inverse, bool doubled
#define POSENC_TABLE_PASS \
  x, cos, sin, position_ids, seq_dim, interleaved, interleaved_out, rotary_start, inverse, doubled

struct ApplyRotaryFunction : torch::autograd::Function<ApplyRotaryFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, POSENC_TABLE_ARGS) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // x is kept for the gradients of the tables alone.
    const bool tables_learn = cos.requires_grad() || sin.requires_grad();
    ctx->save_for_backward(
        {tables_learn ? x : Tensor(), cos, sin, core::value_or_undefined(position_ids)});
    ctx->saved_data["seq_dim"] = seq_dim;
    ctx->saved_data["interleaved"] = interleaved;
    ctx->saved_data["interleaved_out"] = interleaved_out.value_or(interleaved);
    ctx->saved_data["rotary_start"] = rotary_start;
    ctx->saved_data["inverse"] = inverse;
    ctx->saved_data["doubled"] = doubled;
    return apply_rotary(POSENC_TABLE_PASS);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &cos = saved[1], &sin = saved[2], &grad = grads[0];
    const OptionalTensor position_ids = core::optional_of(saved[3]);
    const int64_t seq_dim = ctx->saved_data["seq_dim"].toInt();
    const bool interleaved = ctx->saved_data["interleaved"].toBool();
    const bool interleaved_out = ctx->saved_data["interleaved_out"].toBool();
    const int64_t start = ctx->saved_data["rotary_start"].toInt();
    const bool inverse = ctx->saved_data["inverse"].toBool();
    const bool doubled = ctx->saved_data["doubled"].toBool();
    Tensor x_grad, cos_grad, sin_grad;
    if (ctx->needs_input_grad(0)) {
      // A doubled table is laid out as the input is, and the transpose reads the other layout: the
      // composite keeps them apart.
      const TableArgs args = check_apply_rotary(grad, cos, sin, position_ids, seq_dim, interleaved,
                                                interleaved_out, start, inverse, doubled);
      if (args.wide && interleaved != interleaved_out) {
        x_grad = transpose_wide(grad, cos, sin, args);
      } else {
        x_grad = apply_rotary(grad, cos, sin, position_ids, seq_dim, interleaved_out, interleaved,
                              start, !inverse, doubled);
      }
    }
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      const TableArgs args = check_apply_rotary(x, cos, sin, position_ids, seq_dim, interleaved,
                                                interleaved_out, start, inverse, doubled);
      std::tie(cos_grad, sin_grad) = table_grads(grad, x, cos, sin, args);
    }
    return {x_grad,   cos_grad, sin_grad, Tensor(), Tensor(),
            Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }

  static Tensor transpose_wide(const Tensor& grad, const Tensor& cos, const Tensor& sin,
                               const TableArgs& args) {
    const RotaryArgs& r = args.rotary;
    const auto relayout = [&](const Tensor& table) {
      const auto [lo, hi] = split_pairs(table, args.n, 0, r.interleaved);
      return join_pairs(lo, hi, r.layout_out());
    };
    return apply_rotary(grad, relayout(cos), relayout(sin), r.position_ids, r.seq_dim,
                        r.layout_out(), r.interleaved, r.rotary_start, !r.inverse,
                        /*doubled=*/true);
  }
};

Tensor apply_rotary_fallback(POSENC_TABLE_ARGS) {
  return apply_rotary_composite(x, cos, sin, check_apply_rotary(POSENC_TABLE_PASS));
}

Tensor apply_rotary_autograd(POSENC_TABLE_ARGS) {
  if (core::needs_composite({x, cos, sin})) {
    return apply_rotary_fallback(POSENC_TABLE_PASS);
  }
  if (core::wants_grad({x, cos, sin})) {
    return ApplyRotaryFunction::apply(POSENC_TABLE_PASS);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return apply_rotary(POSENC_TABLE_PASS);
}

Tensor apply_rotary_meta(POSENC_TABLE_ARGS) {
  check_apply_rotary(POSENC_TABLE_PASS);
  return at::empty_like(x);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  m.def(
      "apply_rotary(Tensor x, Tensor cos, Tensor sin, Tensor? position_ids=None, int seq_dim=2, "
      "bool interleaved=False, "
      "bool? interleaved_out=None, int rotary_start=0, bool inverse=False, bool doubled=False) -> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(posenc, Autograd, m) { m.impl("apply_rotary", apply_rotary_autograd); }
TORCH_LIBRARY_IMPL(posenc, Meta, m) { m.impl("apply_rotary", apply_rotary_meta); }
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) { m.impl("apply_rotary", apply_rotary_fallback); }
TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("apply_rotary", apply_rotary_fallback);
}

}  // namespace rotary

at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                        const std::optional<at::Tensor>& position_ids, int64_t seq_dim,
                        bool interleaved, std::optional<bool> interleaved_out, int64_t rotary_start,
                        bool inverse, bool doubled) {
  static const auto op = core::find_op<at::Tensor(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
      int64_t, bool, std::optional<bool>, int64_t, bool, bool)>("posenc::apply_rotary");
  return op.call(x, cos, sin, position_ids, seq_dim, interleaved, interleaved_out, rotary_start,
                 inverse, doubled);
}

}  // namespace posenc
