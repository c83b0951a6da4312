#include <posenc/attention/attention_args.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <posenc/attention/attention_kernels.h>
#include <posenc/bias/masked_softmax.h>
#include <posenc/core/checks.h>

#include <cmath>
#include <limits>

namespace posenc::attention {
namespace {

void check_positions(const char* op, const char* name, const std::optional<at::Tensor>& positions,
                     const at::Tensor& q, const c10::SymInt& length) {
  if (!positions.has_value()) {
    return;
  }
  const at::Tensor& p = *positions;
  const at::ScalarType dtype = p.scalar_type();
  const bool exact = c10::isIntegralType(dtype, /*includeBool=*/false) || dtype == at::kFloat ||
                     dtype == at::kDouble;
  TORCH_CHECK_TYPE(exact, op, ": expected ", name, " of an integer dtype, float32 or float64, got ",
                   dtype);
  TORCH_CHECK_VALUE(p.device() == q.device(), op, ": expected ", name, " on q's device ",
                    q.device(), ", got ", p.device());
  const bool good = (p.dim() == 1 || p.dim() == 2) && p.sym_size(-1) == length &&
                    (p.dim() == 1 || p.sym_size(0) == 1 || p.sym_size(0) == q.sym_size(0));
  TORCH_CHECK_VALUE(good, op, ": expected ", name, " of shape (", length, "), (1, ", length,
                    ") or (", q.sym_size(0), ", ", length, "), got ", p.sym_sizes());
}

}  // namespace

double AttentionArgs::scale_of(const at::Tensor& q) const {
  return scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

c10::SymInt AttentionArgs::offset_of(const at::Tensor& q, const at::Tensor& k) const {
  return offset.has_value() ? *offset : k.sym_size(2) - q.sym_size(2);
}

void check_slopes(const char* op, const at::Tensor& q, int64_t count) {
  TORCH_CHECK_VALUE(q.sym_size(1) == count, op, ": expected ", q.sym_size(1),
                    " slopes, one per query head of q (B, H, L, D), got ", count);
}

void check_slopes(const char* op, const at::Tensor& q, const at::Tensor& slopes) {
  TORCH_CHECK_TYPE(at::isFloatingType(slopes.scalar_type()), op,
                   ": expected slopes of a floating dtype, got ", slopes.scalar_type());
  TORCH_CHECK_VALUE(slopes.device() == q.device(), op, ": expected slopes on q's device ",
                    q.device(), ", got ", slopes.device());
  const bool good =
      (slopes.dim() == 1 || (slopes.dim() == 2 && slopes.sym_size(0) == q.sym_size(0))) &&
      slopes.sym_size(-1) == q.sym_size(1);
  TORCH_CHECK_VALUE(good, op, ": expected slopes of shape (", q.sym_size(1), ") or (",
                    q.sym_size(0), ", ", q.sym_size(1), "), one per query head, got ",
                    slopes.sym_sizes());
}

void check_attention(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionArgs& args) {
  TORCH_CHECK_VALUE(q.dim() == 4, op, ": expected q of shape (B, H, L, D), got ", q.sym_sizes());
  TORCH_CHECK_VALUE(k.dim() == 4, op, ": expected k of shape (B, Hkv, S, D), got ", k.sym_sizes());
  TORCH_CHECK_VALUE(v.dim() == 4, op, ": expected v of shape (B, Hkv, S, Dv), got ", v.sym_sizes());
  core::check_floating(op, "q", q);
  core::check_same(op, "k", k, "q", q);
  core::check_same(op, "v", v, "q", q);
  TORCH_CHECK_VALUE(q.sym_size(3) >= 1 && v.sym_size(3) >= 1, op,
                    ": expected head dimensions of at least 1, got q ", q.sym_sizes(), ", v ",
                    v.sym_sizes());
  TORCH_CHECK_VALUE(k.sym_size(0) == q.sym_size(0) && k.sym_size(3) == q.sym_size(3), op,
                    ": expected k of shape (", q.sym_size(0), ", Hkv, S, ", q.sym_size(3),
                    ") for q of shape ", q.sym_sizes(), ", got ", k.sym_sizes());
  TORCH_CHECK_VALUE(v.sym_size(0) == k.sym_size(0) && v.sym_size(1) == k.sym_size(1) &&
                        v.sym_size(2) == k.sym_size(2),
                    op, ": expected v of shape (", k.sym_size(0), ", ", k.sym_size(1), ", ",
                    k.sym_size(2), ", Dv) for k of shape ", k.sym_sizes(), ", got ", v.sym_sizes());
  const bool grouped =
      k.sym_size(1) == q.sym_size(1) || (k.sym_size(1) > 0 && q.sym_size(1) % k.sym_size(1) == 0);
  TORCH_CHECK_VALUE(grouped, op, ": expected a number of query heads that is a multiple of the ",
                    k.sym_size(1), " key heads, got ", q.sym_size(1));
  if (args.mask.has_value()) {
    bias::check_mask(op, *args.mask, q.sym_size(0), q.sym_size(1), q.sym_size(2), k.sym_size(2),
                     q.device());
  }
  check_positions(op, "q_positions", args.q_positions, q, q.sym_size(2));
  check_positions(op, "k_positions", args.k_positions, q, k.sym_size(2));
  TORCH_CHECK_VALUE(
      !args.offset.has_value() || !args.q_positions.has_value(), op,
      ": expected offset or q_positions, not both: q_positions are absolute, got offset ",
      *args.offset);
  if (args.key_norms.has_value()) {
    const at::Tensor& norms = *args.key_norms;
    const c10::SymInt blocks = (k.sym_size(2) + (kKeyBlock - 1)) / kKeyBlock;
    TORCH_CHECK_TYPE(at::isFloatingType(norms.scalar_type()), op,
                     ": expected key_norms of a floating dtype, got ", norms.scalar_type());
    const bool good = norms.dim() == 3 && norms.sym_size(0) == k.sym_size(0) &&
                      norms.sym_size(1) == k.sym_size(1) && norms.sym_size(2) == blocks;
    TORCH_CHECK_VALUE(good, op, ": expected key_norms of shape (", k.sym_size(0), ", ",
                      k.sym_size(1), ", ", blocks, "), one per block of ", kKeyBlock, " keys, got ",
                      norms.sym_sizes());
    TORCH_CHECK_VALUE(norms.device() == q.device(), op, ": expected key_norms on q's device ",
                      q.device(), ", got ", norms.device());
  }
}

void check_backward(const char* op, const at::Tensor& grad_out,
                    const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse) {
  const auto shape = [&](const char* name, const at::Tensor& x, at::IntArrayRef expected) {
    TORCH_CHECK_VALUE(x.sizes() == expected, op, ": expected ", name, " of shape ", expected,
                      ", got ", x.sizes());
    TORCH_CHECK_VALUE(x.device() == q.device(), op, ": expected ", name, " on q's device ",
                      q.device(), ", got ", x.device());
  };
  const int64_t rows[4] = {q.size(0), q.size(1), q.size(2), v.size(3)};
  shape("grad_out", grad_out, rows);
  shape("out", out, rows);
  shape("lse", lse, at::IntArrayRef(rows, 3));
  if (grad_lse.has_value()) {
    shape("grad_lse", *grad_lse, at::IntArrayRef(rows, 3));
  }
}

void check_key_norms(const at::Tensor& k, const at::Tensor& v) {
  const char* op = "alibi_key_norms";
  TORCH_CHECK_VALUE(k.dim() == 4 && v.dim() == 4, op,
                    ": expected k and v of shape (B, Hkv, S, D), got ", k.sym_sizes(), " and ",
                    v.sym_sizes());
  core::check_floating(op, "k", k);
  core::check_same(op, "v", v, "k", k);
  TORCH_CHECK_VALUE(k.sym_sizes().slice(0, 3) == v.sym_sizes().slice(0, 3), op,
                    ": expected k and v of equal batch, heads and length, got ", k.sym_sizes(),
                    " and ", v.sym_sizes());
}

double log_epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return -53 * std::log(2.0);
    case at::kFloat:
      return -24 * std::log(2.0);
    default:
      return -14 * std::log(2.0);
  }
}

at::Tensor empty_output(const at::Tensor& q, const at::Tensor& v) {
  if (q.sym_size(3) == v.sym_size(3)) {
    return at::empty_like(q);
  }
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
                          q.options());
}

bool fill_without_keys(const at::Tensor& k, at::Tensor& out, at::Tensor& lse) {
  if (k.size(2) == 0) {
    out.zero_();
    lse.fill_(-std::numeric_limits<double>::infinity());
  }
  return lse.numel() == 0 || k.size(2) == 0;
}

at::Tensor empty_lse(const at::Tensor& q) {
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2)},
                          q.options().dtype(core::compute_dtype(q.scalar_type())));
}

}  // namespace posenc::attention
