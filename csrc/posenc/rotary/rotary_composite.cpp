#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <posenc/core/checks.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/rotary_composite.h>
#include <posenc/rotary/rotary_math.h>

namespace posenc::rotary {

at::Tensor align_rows(at::Tensor rows, int64_t rank, int64_t seq_dim) {
  const int64_t batch = core::batch_dim(seq_dim, rank);
  if (batch < 0) {
    rows = rows.squeeze(0);
  } else if (seq_dim < batch) {
    rows = rows.transpose(0, 1);
  }
  for (int64_t d = 0; d < rank - 1; ++d) {
    if (d != batch && d != seq_dim) {
      rows = rows.unsqueeze(d);
    }
  }
  return rows;
}

at::Tensor aligned_positions(const at::Tensor& x, const RotaryArgs& args) {
  at::Tensor positions = core::position_tensor(args.position_ids, args.offset,
                                               x.sym_size(args.seq_dim), x.options());  // (A, B, L)
  if (args.axes.has_value() && !args.axes->empty() && positions.sym_size(0) > 1) {
    std::vector<at::Tensor> chosen;
    chosen.reserve(args.axes->size());
    for (int64_t axis : *args.axes) {
      chosen.push_back(positions.select(0, axis));
    }
    positions = at::stack(chosen, -1);
  } else {
    positions = positions.select(0, 0).unsqueeze(-1);
  }
  return align_rows(positions, x.dim(), args.seq_dim);
}

at::Tensor align_freq(const at::Tensor& inv_freq, const at::Tensor& x, int64_t seq_dim) {
  if (inv_freq.dim() == 1) {
    return inv_freq;
  }
  const c10::SymInt n = inv_freq.sym_size(-1);
  std::vector<c10::SymInt> shape(x.dim(), 1);
  shape.back() = n;
  const int64_t batch = core::batch_dim(seq_dim, x.dim());
  if (batch >= 0) {
    shape[batch] = inv_freq.sym_size(0);
  }
  if (x.dim() == 4) {
    shape[head_dim_axis(x, seq_dim)] = inv_freq.sym_size(1);
  }
  return inv_freq.reshape_symint(shape);
}

at::Tensor phases(const at::Tensor& x, const at::Tensor& inv_freq, const RotaryArgs& args) {
  at::Tensor positions = aligned_positions(x, args);
  return positions * align_freq(inv_freq.to(positions.scalar_type()), x, args.seq_dim);
}

std::pair<at::Tensor, at::Tensor> split_pairs(const at::Tensor& x, int64_t n, int64_t start,
                                              bool interleaved) {
  const at::Tensor part = x.narrow(-1, start, 2 * n);
  if (interleaved) {
    // reshape, not unflatten: the batched gradients of torch.autograd have a rule for it.
    std::vector<c10::SymInt> shape = part.sym_sizes().vec();
    shape.back() = n;
    shape.push_back(2);
    const at::Tensor pairs = part.reshape_symint(shape);
    return {pairs.select(-1, 0), pairs.select(-1, 1)};
  }
  return {part.narrow(-1, 0, n), part.narrow(-1, n, n)};
}

at::Tensor join_pairs(const at::Tensor& lo, const at::Tensor& hi, bool interleaved) {
  if (!interleaved) {
    return at::cat({lo, hi}, -1);
  }
  std::vector<c10::SymInt> shape = lo.sym_sizes().vec();
  shape.back() = 2 * shape.back();
  return at::stack({lo, hi}, -1).reshape_symint(shape);
}

at::Tensor rotate_by(const at::Tensor& x, const at::Tensor& cos_lo, const at::Tensor& sin_lo,
                     const at::Tensor& cos_hi, const at::Tensor& sin_hi, const RotaryArgs& args) {
  const int64_t n = core::fixed_size(cos_lo, -1), start = args.rotary_start;
  const at::ScalarType compute = core::compute_dtype(x.scalar_type());
  auto [a, b] = split_pairs(x, n, start, args.interleaved);
  at::Tensor lo, hi;
  rotate_pair(a.to(compute), b.to(compute), cos_lo.to(compute), sin_lo.to(compute),
              cos_hi.to(compute), sin_hi.to(compute), lo, hi);
  const at::Tensor y = join_pairs(lo, hi, args.layout_out()).to(x.scalar_type());
  const c10::SymInt end = x.sym_size(-1) - (start + 2 * n);
  if (start == 0 && end == 0) {
    return y;
  }
  return at::cat({x.narrow(-1, 0, start), y, x.narrow_symint(-1, start + 2 * n, end)}, -1);
}

at::Tensor rotary_embedding_composite(const at::Tensor& x, const at::Tensor& inv_freq,
                                      const RotaryArgs& args) {
  const at::Tensor angle = phases(x, inv_freq, args);
  const at::Tensor cos = angle.cos() * args.attention_factor;
  const at::Tensor sin =
      angle.sin() * (args.inverse ? -args.attention_factor : args.attention_factor);
  return rotate_by(x, cos, sin, cos, sin, args);
}

at::Tensor inv_freq_grad(const at::Tensor& x_grad, const at::Tensor& x, const at::Tensor& inv_freq,
                         const RotaryArgs& args) {
  const int64_t n = core::fixed_size(inv_freq, -1);
  const at::ScalarType compute = core::compute_dtype(x.scalar_type());
  const auto split = [&](const at::Tensor& t) {
    return split_pairs(t, n, args.rotary_start, args.interleaved);
  };
  const auto [grad_lo, grad_hi] = split(x_grad.to(compute));
  const auto [lo, hi] = split(x.to(compute));
  // Of the angle; the inverse turns the other way.
  at::Tensor angle_grad = args.inverse ? (grad_lo * hi).addcmul(grad_hi, lo, -1)
                                       : (grad_hi * lo).addcmul(grad_lo, hi, -1);
  // In one layout: sums follow the strides, and those of x are to change no bit.
  angle_grad = angle_grad.contiguous();
  const at::Tensor positions = aligned_positions(x, args);
  const at::Tensor aligned = align_freq(inv_freq, x, args.seq_dim);
  // Axes that neither the positions nor the frequencies have are summed first, while the numbers
  // are still float32.
  const int64_t batch = core::batch_dim(args.seq_dim, x.dim());
  const bool one_batch = batch >= 0 && (inv_freq.dim() == 1 || inv_freq.sym_size(0) == 1) &&
                         (!args.position_ids.has_value() || args.position_ids->dim() < 2 ||
                          args.position_ids->sym_size(-2) == 1);
  std::vector<int64_t> spare;
  for (int64_t d = 0; d < x.dim() - 1; ++d) {
    const bool per_head =
        inv_freq.dim() == 3 && x.dim() == 4 && d == head_dim_axis(x, args.seq_dim);
    if (d != args.seq_dim && (d != batch || one_batch) && !per_head) {
      spare.push_back(d);
    }
  }
  if (!spare.empty()) {
    angle_grad = angle_grad.sum(spare, /*keepdim=*/true);
  }
  at::Tensor result = positions * angle_grad.to(positions.scalar_type());
  // inv_freq (n) has fewer axes than x: sum to it as broadcasting would.
  std::vector<int64_t> sum_over;
  for (int64_t d = 0; d < result.dim() - 1; ++d) {
    if (inv_freq.dim() == 1 || aligned.sym_size(d) == 1) {
      sum_over.push_back(d);
    }
  }
  result = result.sum(sum_over, /*keepdim=*/true);
  return result.reshape_symint(inv_freq.sym_sizes()).to(inv_freq.scalar_type());
}

}  // namespace posenc::rotary
