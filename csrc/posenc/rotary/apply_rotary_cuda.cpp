#include <ATen/ops/empty_like.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/rotary/apply_rotary.h>
#include <posenc/rotary/rotary_cuda.h>
#include <torch/library.h>

namespace posenc::rotary {
namespace {

at::Tensor apply_rotary_cuda(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                             const std::optional<at::Tensor>& position_ids, int64_t seq_dim,
                             bool interleaved, std::optional<bool> interleaved_out,
                             int64_t rotary_start, bool inverse, bool doubled) {
  const TableArgs args = check_apply_rotary(x, cos, sin, position_ids, seq_dim, interleaved,
                                            interleaved_out, rotary_start, inverse, doubled);
  at::Tensor y = at::empty_like(x);
  if (args.n == 0) {
    return y.copy_(x);
  }
  RotaryDeviceParams p{};
  p.start = static_cast<int32_t>(rotary_start);
  p.n_pairs = p.n_here = static_cast<int32_t>(args.n);
  p.interleaved_in = args.rotary.interleaved;
  p.interleaved_out = args.rotary.layout_out();
  p.inverse = inverse;
  p.copies_rest = true;
  // What the ids are, the kernel looks at; that there is a row for one, it takes for granted.
  TORCH_CHECK_INDEX(y.numel() == 0 || cos.size(-2) > 0,
                    "apply_rotary: expected position_ids in [0, 0), the rows of cos and sin, got "
                    "ids for x of shape ",
                    x.sizes());
  at::Tensor rows;
  p.positions = position_view(position_ids, 0, rows);
  // The tables are read as they are, of any dtype and strides.
  RotaryDeviceTables& t = p.tables;
  const auto batch_stride = [&](const at::Tensor& table) {
    return args.rows && table.size(0) > 1 ? table.stride(0) : 0;
  };
  t.cos = cos.const_data_ptr();
  t.cos_dtype = core::gpu_dtype(cos.scalar_type());
  t.cos_batch = batch_stride(cos);
  t.cos_seq = cos.stride(-2);
  t.cos_last = cos.stride(-1);
  t.sin = sin.const_data_ptr();
  t.sin_dtype = core::gpu_dtype(sin.scalar_type());
  t.sin_batch = batch_stride(sin);
  t.sin_seq = sin.stride(-2);
  t.sin_last = sin.stride(-1);
  t.n_rows = cos.size(-2);
  t.wide = args.wide;
  t.wide_interleaved = args.rotary.interleaved;
  run_rotation_cuda("apply_rotary", {{x, y, args.rotary.seq_dim}}, p);
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) { m.impl("apply_rotary", apply_rotary_cuda); }

}  // namespace posenc::rotary
