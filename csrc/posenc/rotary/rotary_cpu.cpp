#include <posenc/rotary/rotary_cpu.h>

#include <ATen/ops/empty_like.h>
#include <posenc/core/checks.h>
#include <posenc/core/parallel.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/library.h>

#include <algorithm>

namespace posenc::rotary {

void run_rotation(at::ArrayRef<RotaryTarget> targets, RotaryParams p) {
  const RotaryWork work = share_out(targets);
  if (work.parts.empty()) {
    return;
  }
  p.seq = work.seq;
  p.batch = work.batch;
  p.parts = work.parts.data();
  p.n_parts = static_cast<int64_t>(work.parts.size());
  // Short inputs with much work a row still give every thread something.
  const int64_t rows_per_thread =
      (p.seq * p.batch + at::get_num_threads() - 1) / at::get_num_threads();
  p.seq_block = std::clamp<int64_t>(std::min(rows_per_thread, p.seq), 1, kMaxSeqBlock);
  const int64_t blocks = (p.seq + p.seq_block - 1) / p.seq_block;
  const auto rotate = rotary_kernels().rotate(targets[0].x.scalar_type());
  core::parallel_tasks(blocks * p.batch, p.seq_block * work.row,
                       [&](int64_t begin, int64_t end) { rotate(p, begin, end); });
}

namespace {

void rotate_by_frequencies(at::ArrayRef<RotaryTarget> targets, const double* inv_freq, int64_t n,
                           int64_t freq_batch_stride, const RotaryArgs& args) {
  const core::Positions positions =
      core::make_positions(args.position_ids, args.offset.expect_int());
  RotaryParams p{};
  p.start = args.rotary_start;
  p.n_freq = n;
  p.interleaved_in = args.interleaved;
  p.interleaved_out = args.layout_out();
  p.inverse = args.inverse;
  p.attention_factor = args.attention_factor;
  p.inv_freq = inv_freq;
  p.freq_batch_stride = freq_batch_stride;
  p.positions = positions.view;
  p.axes = args.axes.has_value() && positions.view.axis_stride != 0 ? args.axes->data() : nullptr;
  run_rotation(targets, p);
}

}  // namespace

void rotate_by_frequencies(at::ArrayRef<RotaryTarget> targets, at::ArrayRef<double> inv_freq,
                           const RotaryArgs& args) {
  rotate_by_frequencies(targets, inv_freq.data(), static_cast<int64_t>(inv_freq.size()), 0, args);
}

void rotate_by_frequencies_of_rows(at::ArrayRef<RotaryTarget> targets, const double* inv_freq,
                                   int64_t n, const RotaryArgs& args) {
  rotate_by_frequencies(targets, inv_freq, n, n, args);
}

namespace {

at::Tensor rotary_embedding_tensor_cpu(const at::Tensor& x, const at::Tensor& inv_freq,
                                       POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_tensor(x, inv_freq, args);
  at::Tensor y = at::empty_like(x);
  const at::Tensor freq = inv_freq.contiguous();
  const int64_t n = freq.size(-1);
  const int64_t sets = n == 0 ? 0 : freq.numel() / n;
  if (sets <= 1) {
    rotate_by_frequencies({{x, y, args.seq_dim}},
                          {freq.const_data_ptr<double>(), static_cast<size_t>(n)}, args);
    return y;
  }
  const double* const data = freq.const_data_ptr<double>();
  if (freq.size(0) > 1) {
    rotate_by_frequencies_of_rows({{x, y, args.seq_dim}}, data, n, args);
    return y;
  }
  // One set of frequencies after another: the slice of each head is a rotation of its own.
  const int64_t axis = head_dim_axis(x, args.seq_dim);
  for (int64_t i = 0; i < sets; ++i) {
    const at::Tensor x_slice = x.narrow(axis, i, 1), y_slice = y.narrow(axis, i, 1);
    rotate_by_frequencies({{x_slice, y_slice, args.seq_dim}},
                          {data + i * n, static_cast<size_t>(n)}, args);
  }
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_cpu);
}

}  // namespace posenc::rotary
