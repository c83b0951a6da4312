#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <posenc/rotary/rotary_cpu.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/library.h>

#include <tuple>

namespace posenc::rotary {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;

void rotate_both(const RotaryTarget& q, const RotaryTarget& k, at::ArrayRef<double> inv_freq,
                 const RotaryArgs& args) {
  if (q.x.scalar_type() == k.x.scalar_type()) {
    rotate_by_frequencies({q, k}, inv_freq, args);
  } else {  // the loops know one dtype
    rotate_by_frequencies({q}, inv_freq, args);
    rotate_by_frequencies({k}, inv_freq, args);
  }
}

Pair rotary_embedding_qk_cpu(const at::Tensor& q, const at::Tensor& k,
                             at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  const int64_t k_dim = check_rotary_qk("rotary_embedding_qk", q, k, inv_freq.size(), args);
  Pair out{at::empty_like(q), at::empty_like(k)};
  rotate_both({q, std::get<0>(out), args.seq_dim}, {k, std::get<1>(out), k_dim}, inv_freq, args);
  return out;
}

Pair rotary_embedding_qk_cpu_(const at::Tensor& q, const at::Tensor& k,
                              at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  const int64_t k_dim = check_rotary_qk("rotary_embedding_qk_", q, k, inv_freq.size(), args);
  at::assert_no_internal_overlap(q);
  at::assert_no_internal_overlap(k);
  at::assert_no_overlap(q, k);
  rotate_both({q, q, args.seq_dim}, {k, k, k_dim}, inv_freq, args);
  return {q, k};
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  m.impl("rotary_embedding_qk", rotary_embedding_qk_cpu);
  m.impl("rotary_embedding_qk_", rotary_embedding_qk_cpu_);
}

}  // namespace posenc::rotary
