#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <posenc/absolute/encoding.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/dispatch.h>

namespace posenc::absolute {

void check_frequencies(const char* op, int64_t count, const c10::SymInt& channels) {
  const bool fits = holds(channels.sym_ge(2 * count - 1)) &&
                    holds(channels.sym_le(2 * count + 1)) && holds(channels.sym_ge(1));
  TORCH_CHECK_VALUE(fits, op, ": expected d_model ", 2 * count, " (2 * len(inv_freq)), ",
                    2 * count - 1, " or ", 2 * count + 1, ", got ", channels);
}

EncodingSource encoding_source(c10::ArrayRef<double> inv_freq, bool interleaved,
                               const core::Positions& positions) {
  EncodingSource source;
  source.inv_freq = inv_freq.data();
  source.n = static_cast<int64_t>(inv_freq.size());
  source.interleaved = interleaved;
  source.positions = positions.view.data;
  source.positions_batch_stride = positions.view.batch_stride;
  source.offset = positions.view.offset;
  return source;
}

at::Tensor composite_encoding(const at::Tensor& positions, c10::ArrayRef<double> inv_freq,
                              const c10::SymInt& channels, bool interleaved,
                              at::ScalarType compute) {
  const auto count = static_cast<int64_t>(inv_freq.size());
  // MPS has no float64.
  const at::ScalarType real = positions.is_mps() ? at::kFloat : at::kDouble;
  const at::Tensor phase = positions.to(real).unsqueeze(-1).mul(
      core::float_list_tensor(inv_freq, positions.options().dtype(real)));
  const at::Tensor sin = phase.sin().to(compute), cos = phase.cos().to(compute);
  at::Tensor rows = interleaved ? at::stack({sin, cos}, -1).flatten(-2) : at::cat({sin, cos}, -1);
  if (channels == 2 * count) {
    return rows;
  }
  return channels < 2 * count ? rows.slice_symint(-1, 0, channels)
                              : at::constant_pad_nd(rows, {0, 1});
}

}  // namespace posenc::absolute
