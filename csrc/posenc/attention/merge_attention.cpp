// merge_attention: composite of ATen calls, so differentiable to any order everywhere.

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <limits>
#include <tuple>

namespace posenc::attention {
namespace {

using at::Tensor;

void check_merge(const Tensor& out1, const Tensor& lse1, const Tensor& out2, const Tensor& lse2) {
  const char* op = "merge_attention";
  TORCH_CHECK_VALUE(out1.sym_sizes() == out2.sym_sizes(), op,
                    ": expected out1 and out2 of one shape, got ", out1.sym_sizes(), " and ",
                    out2.sym_sizes());
  TORCH_CHECK_VALUE(lse1.sym_sizes() == lse2.sym_sizes(), op,
                    ": expected lse1 and lse2 of one shape, got ", lse1.sym_sizes(), " and ",
                    lse2.sym_sizes());
  TORCH_CHECK_VALUE(
      out1.dim() >= 1 && lse1.sym_sizes() == out1.sym_sizes().slice(0, out1.dim() - 1), op,
      ": expected lse of out's shape without its last axis, got out ", out1.sym_sizes(),
      " and lse ", lse1.sym_sizes());
  TORCH_CHECK_TYPE(at::isFloatingType(out1.scalar_type()) && at::isFloatingType(lse1.scalar_type()),
                   op, ": expected floating dtypes, got out ", out1.scalar_type(), " and lse ",
                   lse1.scalar_type());
}

std::tuple<Tensor, Tensor> merge_attention(const Tensor& out1, const Tensor& lse1,
                                           const Tensor& out2, const Tensor& lse2) {
  check_merge(out1, lse1, out2, lse2);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // The maximum only keeps exp in range; no derivative goes through it. Where both parts are empty
  // it is 0.
  Tensor most = at::maximum(lse1, lse2).detach();
  most = at::where(most == -kInfinity, at::zeros_like(most), most);
  const Tensor weight1 = (lse1 - most).exp(), weight2 = (lse2 - most).exp();
  const Tensor sum = weight1 + weight2;
  const Tensor empty = sum == 0;
  const Tensor safe = at::where(empty, at::ones_like(sum), sum);
  const Tensor lse = at::where(empty, at::maximum(lse1, lse2).detach(), most + safe.log());
  // An empty part's output counts for nothing, whatever its library wrote there.
  const auto part = [&](const Tensor& out, const Tensor& part_lse, const Tensor& weight) {
    const Tensor wide = out.to(weight.scalar_type());
    return at::where((part_lse == -kInfinity).unsqueeze(-1), at::zeros({}, wide.options()), wide) *
           (weight / safe).unsqueeze(-1);
  };
  const Tensor out = part(out1, lse1, weight1) + part(out2, lse2, weight2);
  return {out.to(out1.scalar_type()), lse};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  m.def(
      "merge_attention(Tensor out1, Tensor lse1, Tensor out2, Tensor lse2) -> (Tensor out, Tensor "
      "lse)",
      {at::Tag::pt2_compliant_tag});
  m.impl("merge_attention", TORCH_FN(merge_attention));
}

}  // namespace posenc::attention
