#pragma once

// The dense formula in differentiable ATen calls: O(L·S) memory, any device, any order of
// derivative, torch.func and forward mode. What the tiles compute, spelled out.

#include <ATen/core/Tensor.h>
#include <posenc/attention/attention_args.h>

#include <tuple>

namespace posenc::attention {

/// slopes (H) or (B, H). Keys that no query may see are replaced by zeros, so NaN in padding does
/// not come through; NaN in a key that only some queries see reaches all of them, unlike in the
/// kernels.
std::tuple<at::Tensor, at::Tensor> attention_composite(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& v,
                                                       const at::Tensor& slopes,
                                                       const AttentionArgs& args);

/// The gradients of q, k, v and the slopes as a function of grad_out, grad_lse and q, k, v, slopes,
/// from which the weights are made anew: differentiating it gives the second derivative.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward_composite(
    const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
    const at::Tensor& k, const at::Tensor& v, const at::Tensor& slopes, const AttentionArgs& args);

/// (1 or B, 1, L, S) key position − query position in the compute dtype.
at::Tensor distances(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args,
                     at::ScalarType dtype);

}  // namespace posenc::attention
