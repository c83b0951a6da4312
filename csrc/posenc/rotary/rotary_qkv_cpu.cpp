#include <ATen/ops/empty_like.h>
#include <posenc/rotary/rotary_cpu.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/library.h>

namespace posenc::rotary {
namespace {

at::Tensor rotary_embedding_qkv_cpu(const at::Tensor& qkv, at::ArrayRef<double> inv_freq,
                                    int64_t n_heads, int64_t n_kv_heads, POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  const int64_t rotated =
      check_rotary_qkv("rotary_embedding_qkv", qkv, n_heads, n_kv_heads, inv_freq.size(), args);
  at::Tensor out = at::empty_like(qkv);
  const int64_t rest = qkv.size(2) - rotated;
  const at::Tensor x = qkv.narrow(2, 0, rotated), y = out.narrow(2, 0, rotated);
  const at::Tensor v = qkv.narrow(2, rotated, rest), v_out = out.narrow(2, rotated, rest);
  rotate_by_frequencies({{x, y, args.seq_dim}, {v, v_out, args.seq_dim, /*copied=*/true}}, inv_freq,
                        args);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) { m.impl("rotary_embedding_qkv", rotary_embedding_qkv_cpu); }

}  // namespace posenc::rotary
