#pragma once

// The CPU side of biased attention: tensors in, parameters and threads for the loops of
// alibi_attention_simd.cpp.

#include <ATen/core/Tensor.h>
#include <posenc/attention/attention_args.h>

#include <tuple>

namespace posenc::attention {

/// Key blocks computed and key blocks there are, summed over the tiles.
struct BlockCounts {
  int64_t computed = 0, total = 0;
};

/// slopes float64, contiguous, (H) or (B, H). `counts`, where wanted, is added to.
std::tuple<at::Tensor, at::Tensor> attention_forward_cpu(const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const at::Tensor& slopes,
                                                         const AttentionArgs& args,
                                                         BlockCounts* counts = nullptr);

/// Gradients of q, k, v and, where wanted (else undefined), of the slopes in float64.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
    const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
    const at::Tensor& slopes, const AttentionArgs& args, bool want_slopes,
    BlockCounts* counts = nullptr);

/// (B, Hkv, blocks) in the compute dtype.
at::Tensor key_norms_cpu(const at::Tensor& k, const at::Tensor& v);

}  // namespace posenc::attention
