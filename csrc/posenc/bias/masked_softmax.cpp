#include <posenc/bias/masked_softmax.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <limits>

namespace posenc::bias {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void check_mask(const char* op, const at::Tensor& mask, const c10::SymInt& batch,
                const c10::SymInt& heads, const c10::SymInt& q_len, const c10::SymInt& k_len,
                const at::Device& device) {
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op, ": expected a bool mask, True = keep, got ",
                   mask.scalar_type(),
                   ". Two conventions are in use for other dtypes: where 0 blocks pass `mask != "
                   "0`; where 0.0 keeps and "
                   "-inf blocks (an additive mask) pass `mask == 0`");
  TORCH_CHECK_VALUE(mask.device() == device, op, ": expected mask on device ", device, ", got ",
                    mask.device());
  const c10::SymInt full[4] = {batch, heads, q_len, k_len};
  bool good = mask.dim() <= 4;
  for (int64_t d = 1; good && d <= mask.dim(); ++d) {
    good = mask.sym_size(-d) == 1 || mask.sym_size(-d) == full[4 - d];
  }
  TORCH_CHECK_VALUE(good, op, ": expected a mask that broadcasts to (B, H, L, S) = (", batch, ", ",
                    heads, ", ", q_len, ", ", k_len, "), got ", mask.sym_sizes());
}

MaskedSoftmax masked_softmax(at::Tensor scores, const at::Tensor& allowed) {
  if (allowed.defined()) {
    scores = at::where(allowed, scores, at::full({}, -kInfinity, scores.options()));
  }
  // The maximum only keeps exp in range: results do not depend on it, so no derivative goes through
  // it.
  at::Tensor most = scores.detach().amax(-1, /*keepdim=*/true);
  most = at::where(most == -kInfinity, at::zeros_like(most), most);
  const at::Tensor weights = (scores - most).exp();
  const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  if (!allowed.defined()) {
    return {weights / sum, (most + sum.log()).squeeze(-1)};
  }
  const at::Tensor empty = allowed.any(-1, /*keepdim=*/true).logical_not();
  const at::Tensor safe = at::where(empty, at::full({}, 1.0, sum.options()), sum);
  const at::Tensor lse =
      at::where(empty, at::full({}, -kInfinity, sum.options()), most + safe.log());
  return {weights / safe, lse.squeeze(-1)};
}

void isolate_broken(const at::Tensor& allowed, at::Tensor& weights, at::Tensor& v) {
  const at::Tensor broken = v.isfinite().all(-1).logical_not();  // (B, H, S)
  v = at::where(broken.unsqueeze(-1), at::full({}, 0.0, v.options()), v);
  weights =
      at::where(allowed.logical_and(broken.unsqueeze(-2)),
                at::full({}, std::numeric_limits<double>::quiet_NaN(), weights.options()), weights);
}

at::Tensor index_distance(const c10::SymInt& q_len, const c10::SymInt& k_len,
                          const c10::SymInt& offset, const at::TensorOptions& options) {
  const at::TensorOptions index = options.dtype(at::kLong);
  const at::Tensor queries = at::arange(at::Scalar(q_len), index).add(at::Scalar(offset));
  const at::Tensor keys = at::arange(at::Scalar(k_len), index);
  return (keys.unsqueeze(0) - queries.unsqueeze(1)).unsqueeze(0).unsqueeze(0);
}

}  // namespace posenc::bias
