#include <posenc/attention/alibi_attention_composite.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <posenc/bias/masked_softmax.h>
#include <posenc/core/checks.h>

#include <limits>

namespace posenc::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// (L) or (B, L) as (1 or B, 1, L).
at::Tensor with_batch(const at::Tensor& positions) {
  return positions.dim() == 1 ? positions.unsqueeze(0).unsqueeze(0) : positions.unsqueeze(1);
}

/// Heads of k or v repeated to those of q.
at::Tensor repeat_heads(const at::Tensor& x, const c10::SymInt& heads) {
  if (x.sym_size(1) == heads) {
    return x;
  }
  const c10::SymInt group = heads / x.sym_size(1);
  return x.unsqueeze(2)
      .expand_symint({x.sym_size(0), x.sym_size(1), group, x.sym_size(2), x.sym_size(3)})
      .reshape_symint({x.sym_size(0), heads, x.sym_size(2), x.sym_size(3)});
}

/// The reverse for gradients.
at::Tensor sum_heads(const at::Tensor& x, const c10::SymInt& kv_heads) {
  if (x.sym_size(1) == kv_heads) {
    return x;
  }
  const c10::SymInt group = x.sym_size(1) / kv_heads;
  return x.reshape_symint({x.sym_size(0), kv_heads, group, x.sym_size(2), x.sym_size(3)}).sum(2);
}

at::Tensor align_slopes(const at::Tensor& slopes, at::ScalarType dtype) {
  const at::Tensor s = slopes.to(dtype).unsqueeze(-1).unsqueeze(-1);  // (…, H, 1, 1)
  return slopes.dim() == 1 ? s.unsqueeze(0) : s;
}

/// What forward and backward share.
struct Dense {
  at::Tensor q, k, v;   // compute dtype, heads repeated, keys that nobody sees zeroed
  at::Tensor distance;  // |k − q|
  at::Tensor allowed;   // bool, broadcastable to the scores; undefined: all
  at::Tensor weights;   // (B, H, L, S) softmax; rows without keys 0
  at::Tensor lse;       // (B, H, L)
};

Dense dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& slopes,
            const AttentionArgs& args) {
  const at::ScalarType dtype = core::compute_dtype(q.scalar_type());
  Dense d;
  const at::Tensor signed_distance = distances(q, k, args, dtype);
  d.distance = signed_distance.abs();
  if (args.is_causal) {
    d.allowed = signed_distance <= 0;
  }
  if (args.mask.has_value()) {
    at::Tensor mask = *args.mask;
    while (mask.dim() < 4) {
      mask = mask.unsqueeze(0);
    }
    d.allowed = d.allowed.defined() ? d.allowed.logical_and(mask) : mask;
  }
  d.q = q.to(dtype);
  d.k = repeat_heads(k.to(dtype), q.sym_size(1));
  d.v = repeat_heads(v.to(dtype), q.sym_size(1));
  if (d.allowed.defined()) {
    const at::Tensor seen = d.allowed.any(-2).unsqueeze(-1);  // (…, S, 1)
    d.k = at::where(seen, d.k, at::zeros({}, d.k.options()));
    d.v = at::where(seen, d.v, at::zeros({}, d.v.options()));
  }
  const at::Tensor scores = at::matmul(d.q * args.scale_of(q), d.k.transpose(-2, -1)) -
                            align_slopes(slopes, dtype) * d.distance;
  const bias::MaskedSoftmax softmax = bias::masked_softmax(scores, d.allowed);
  d.weights = softmax.weights;
  if (d.allowed.defined()) {
    bias::isolate_broken(d.allowed, d.weights, d.v);
  }
  d.lse = softmax.lse;
  return d;
}

}  // namespace

at::Tensor distances(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args,
                     at::ScalarType dtype) {
  const at::TensorOptions index = q.options().dtype(at::kLong);
  at::Tensor queries, keys;
  if (args.q_positions.has_value()) {
    queries = with_batch(*args.q_positions);
  } else {
    queries = with_batch(
        at::arange(at::Scalar(q.sym_size(2)), index).add(at::Scalar(args.offset_of(q, k))));
  }
  if (args.k_positions.has_value()) {
    keys = with_batch(*args.k_positions);
  } else {
    keys = with_batch(at::arange(at::Scalar(k.sym_size(2)), index));
  }
  // Subtracted in the positions' own type: exact for integers.
  return (keys.unsqueeze(-2) - queries.unsqueeze(-1)).to(dtype);
}

std::tuple<at::Tensor, at::Tensor> attention_composite(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& v,
                                                       const at::Tensor& slopes,
                                                       const AttentionArgs& args) {
  const at::ScalarType dtype = core::compute_dtype(q.scalar_type());
  if (k.sym_size(2) == 0) {
    return {
        at::zeros_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, q.options()),
        at::full_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2)}, -kInfinity,
                        q.options().dtype(dtype))};
  }
  const Dense d = dense(q, k, v, slopes, args);
  return {at::matmul(d.weights, d.v).to(q.scalar_type()), d.lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward_composite(
    const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
    const at::Tensor& k, const at::Tensor& v, const at::Tensor& slopes, const AttentionArgs& args) {
  if (k.sym_size(2) == 0) {
    return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v), at::zeros_like(slopes)};
  }
  const at::ScalarType dtype = core::compute_dtype(q.scalar_type());
  const double scale = args.scale_of(q);
  const Dense d = dense(q, k, v, slopes, args);
  const at::Tensor go = grad_out.to(dtype);
  const at::Tensor dp = at::matmul(go, d.v.transpose(-2, -1));
  at::Tensor delta = (d.weights * dp).sum(-1, /*keepdim=*/true);
  if (grad_lse.has_value()) {
    delta = delta - grad_lse->to(dtype).unsqueeze(-1);
  }
  const at::Tensor ds = d.weights * (dp - delta);
  const at::Tensor dq = at::matmul(ds, d.k) * scale;
  at::Tensor dk = at::matmul(ds.transpose(-2, -1), d.q) * scale;
  at::Tensor dv = at::matmul(d.weights.transpose(-2, -1), go);
  dk = sum_heads(dk, k.sym_size(1));
  dv = sum_heads(dv, k.sym_size(1));
  at::Tensor dslopes = (ds * d.distance).sum({-2, -1}).neg();
  if (slopes.dim() == 1) {
    dslopes = dslopes.sum(0);
  }
  return {dq.to(q.scalar_type()), dk.to(k.scalar_type()), dv.to(v.scalar_type()),
          dslopes.to(slopes.scalar_type())};
}

}  // namespace posenc::attention
