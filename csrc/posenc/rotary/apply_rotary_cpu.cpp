#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty_like.h>
#include <posenc/core/checks.h>
#include <posenc/rotary/apply_rotary.h>
#include <posenc/rotary/rotary_cpu.h>
#include <torch/library.h>

namespace posenc::rotary {
namespace {

at::Tensor apply_rotary_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            const std::optional<at::Tensor>& position_ids, int64_t seq_dim,
                            bool interleaved, std::optional<bool> interleaved_out,
                            int64_t rotary_start, bool inverse, bool doubled) {
  const TableArgs args = check_apply_rotary(x, cos, sin, position_ids, seq_dim, interleaved,
                                            interleaved_out, rotary_start, inverse, doubled);
  const at::ScalarType compute = core::compute_dtype(x.scalar_type());
  const at::Tensor cos_rows = cos.to(compute).contiguous(), sin_rows = sin.to(compute).contiguous();
  const int64_t width = cos.size(-1);

  RotaryParams p{};
  p.start = rotary_start;
  p.n_freq = args.n;
  p.interleaved_in = args.rotary.interleaved;
  p.interleaved_out = args.rotary.layout_out();
  p.inverse = inverse;
  p.attention_factor = 1.0;
  p.tables.cos = cos_rows.const_data_ptr();
  p.tables.sin = sin_rows.const_data_ptr();
  p.tables.wide = args.wide;
  p.tables.wide_interleaved = args.rotary.interleaved;
  p.tables.seq_stride = width;
  p.tables.batch_stride = args.rows && cos.size(0) > 1 ? cos.size(1) * width : 0;

  at::Tensor rows;
  if (position_ids.has_value()) {
    rows = position_ids->to(at::kLong).contiguous();
    if (rows.numel() > 0) {
      const auto [least, most] = rows.aminmax();
      TORCH_CHECK_INDEX(least.item<int64_t>() >= 0 && most.item<int64_t>() < cos.size(0),
                        "apply_rotary: expected position_ids in [0, ", cos.size(0),
                        "), the rows of cos and sin, got ",
                        least.item<int64_t>() < 0 ? least.item<int64_t>() : most.item<int64_t>());
    }
    p.tables.rows = rows.const_data_ptr<int64_t>();
    p.tables.rows_batch_stride = rows.dim() == 2 && rows.size(0) > 1 ? rows.size(1) : 0;
  }
  at::Tensor y = at::empty_like(x);
  if (args.n == 0) {
    return y.copy_(x);
  }
  run_rotation({{x, y, args.rotary.seq_dim}}, p);
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) { m.impl("apply_rotary", apply_rotary_cpu); }

}  // namespace posenc::rotary
