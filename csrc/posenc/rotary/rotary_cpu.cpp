#include <posenc/rotary/rotary_cpu.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <posenc/core/checks.h>
#include <posenc/core/parallel.h>
#include <torch/library.h>

#include <algorithm>

namespace posenc::rotary {
namespace {

struct Axis {
  int64_t size, x_stride, y_stride;
};

/// The axes that are neither batch, time nor channel, with neighbours merged where both tensors
/// allow it.
std::vector<Axis> head_axes(const at::Tensor& x, const at::Tensor& y, int64_t batch,
                            int64_t seq_dim) {
  std::vector<Axis> axes;
  for (int64_t d = 0; d < x.dim() - 1; ++d) {
    if (d == batch || d == seq_dim || x.size(d) == 1) {
      continue;
    }
    const Axis axis{x.size(d), x.stride(d), y.stride(d)};
    if (!axes.empty() && axes.back().x_stride == axis.size * axis.x_stride &&
        axes.back().y_stride == axis.size * axis.y_stride) {
      axes.back() = {axes.back().size * axis.size, axis.x_stride, axis.y_stride};
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

void run_tasks(const RotaryParams& p, at::ScalarType dtype) {
  const int64_t blocks = (p.seq + p.seq_block - 1) / p.seq_block;
  const int64_t work = p.seq_block * p.heads * p.head_dim;
  const auto rotate = rotary_kernels().rotate(dtype);
  core::parallel_tasks(blocks * p.batch, work,
                       [&](int64_t begin, int64_t end) { rotate(p, begin, end); });
}

/// Walks the axes that could not be merged, one slice at a time.
void run_slices(RotaryParams p, const std::vector<Axis>& axes, size_t depth, at::ScalarType dtype,
                int64_t element) {
  if (depth + 1 >= axes.size()) {
    const Axis last = axes.empty() ? Axis{1, 0, 0} : axes.back();
    p.heads = last.size;
    p.xs.head = last.x_stride;
    p.ys.head = last.y_stride;
    run_tasks(p, dtype);
    return;
  }
  for (int64_t i = 0; i < axes[depth].size; ++i) {
    RotaryParams slice = p;
    slice.x = static_cast<const char*>(p.x) + i * axes[depth].x_stride * element;
    slice.y = static_cast<char*>(p.y) + i * axes[depth].y_stride * element;
    run_slices(slice, axes, depth + 1, dtype, element);
  }
}

}  // namespace

void run_rotation(const at::Tensor& x, const at::Tensor& y, int64_t seq_dim, RotaryParams p) {
  if (x.numel() == 0) {
    return;
  }
  const int64_t batch = core::batch_dim(seq_dim, x.dim());
  p.x = x.const_data_ptr();
  p.y = y.mutable_data_ptr();
  p.batch = batch < 0 ? 1 : x.size(batch);
  p.seq = x.size(seq_dim);
  p.head_dim = x.size(-1);
  p.xs = {batch < 0 ? 0 : x.stride(batch), x.stride(seq_dim), 0, x.stride(-1)};
  p.ys = {batch < 0 ? 0 : y.stride(batch), y.stride(seq_dim), 0, y.stride(-1)};
  // Short inputs with much work a row still give every thread something.
  const int64_t rows_per_thread =
      (p.seq * p.batch + at::get_num_threads() - 1) / at::get_num_threads();
  p.seq_block = std::clamp<int64_t>(std::min(rows_per_thread, p.seq), 1, kMaxSeqBlock);
  run_slices(p, head_axes(x, y, batch, seq_dim), 0, x.scalar_type(), x.element_size());
}

namespace {

RotaryParams params_of(const RotaryArgs& args, int64_t n, const double* inv_freq) {
  RotaryParams p{};
  p.start = args.rotary_start;
  p.n_freq = n;
  p.interleaved_in = args.interleaved;
  p.interleaved_out = args.layout_out();
  p.inverse = args.inverse;
  p.attention_factor = args.attention_factor;
  p.inv_freq = inv_freq;
  return p;
}

void rotate_cpu(const at::Tensor& x, const at::Tensor& y, at::ArrayRef<double> inv_freq,
                const RotaryArgs& args) {
  const core::Positions positions =
      core::make_positions(args.position_ids, args.offset.expect_int());
  RotaryParams p = params_of(args, inv_freq.size(), inv_freq.data());
  p.positions = positions.view;
  p.axes = args.axes.has_value() && positions.view.axis_stride != 0 ? args.axes->data() : nullptr;
  run_rotation(x, y, args.seq_dim, p);
}

at::Tensor rotary_embedding_cpu(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                                const std::optional<at::Tensor>& position_ids, int64_t offset,
                                int64_t seq_dim, bool interleaved,
                                std::optional<bool> interleaved_out, int64_t rotary_start,
                                double attention_factor, at::OptionalIntArrayRef axes,
                                bool inverse) {
  RotaryArgs args = make_args(position_ids, offset, seq_dim, interleaved, interleaved_out,
                              rotary_start, attention_factor, axes, inverse);
  check_rotary("rotary_embedding", x, inv_freq.size(), args);
  at::Tensor y = at::empty_like(x);
  rotate_cpu(x, y, inv_freq, args);
  return y;
}

at::Tensor& rotary_embedding_cpu_(at::Tensor& x, at::ArrayRef<double> inv_freq,
                                  const std::optional<at::Tensor>& position_ids, int64_t offset,
                                  int64_t seq_dim, bool interleaved,
                                  std::optional<bool> interleaved_out, int64_t rotary_start,
                                  double attention_factor, at::OptionalIntArrayRef axes,
                                  bool inverse) {
  RotaryArgs args = make_args(position_ids, offset, seq_dim, interleaved, interleaved_out,
                              rotary_start, attention_factor, axes, inverse);
  check_rotary("rotary_embedding_", x, inv_freq.size(), args);
  at::assert_no_internal_overlap(x);
  rotate_cpu(x, x, inv_freq, args);
  return x;
}

at::Tensor rotary_embedding_tensor_cpu(const at::Tensor& x, const at::Tensor& inv_freq,
                                       const std::optional<at::Tensor>& position_ids,
                                       int64_t offset, int64_t seq_dim, bool interleaved,
                                       std::optional<bool> interleaved_out, int64_t rotary_start,
                                       double attention_factor, at::OptionalIntArrayRef axes,
                                       bool inverse) {
  const char* op = "rotary_embedding.Tensor";
  RotaryArgs args = make_args(position_ids, offset, seq_dim, interleaved, interleaved_out,
                              rotary_start, attention_factor, axes, inverse);
  TORCH_CHECK_VALUE(inv_freq.dim() >= 1, op,
                    ": expected inv_freq of shape (n), (B, 1, n) or (1, H, n), got a scalar");
  check_rotary(op, x, inv_freq.size(-1), args);
  check_freq_tensor(op, x, inv_freq, args);
  at::Tensor y = at::empty_like(x);
  const at::Tensor freq = inv_freq.contiguous();
  const int64_t n = freq.size(-1);
  const int64_t sets = n == 0 ? 0 : freq.numel() / n;
  if (sets <= 1) {
    rotate_cpu(x, y, {freq.const_data_ptr<double>(), static_cast<size_t>(n)}, args);
    return y;
  }
  // One set of frequencies after another: each slice of the batch, or of the heads, is a rotation
  // of its own.
  const int64_t batch = core::batch_dim(args.seq_dim, x.dim());
  const bool per_batch = freq.size(0) > 1;
  const int64_t axis = per_batch ? batch : head_dim_axis(x, args.seq_dim);
  for (int64_t i = 0; i < sets; ++i) {
    RotaryArgs slice = args;
    if (per_batch && args.position_ids.has_value() && args.position_ids->dim() >= 2 &&
        args.position_ids->size(-2) > 1) {
      slice.position_ids = args.position_ids->narrow(-2, i, 1);
    }
    rotate_cpu(x.narrow(axis, i, 1), y.narrow(axis, i, 1),
               {freq.const_data_ptr<double>() + i * n, static_cast<size_t>(n)}, slice);
  }
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  m.impl("rotary_embedding", rotary_embedding_cpu);
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_cpu);
  m.impl("rotary_embedding_", rotary_embedding_cpu_);
}

}  // namespace posenc::rotary
