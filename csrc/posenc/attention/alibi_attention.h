#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <tuple>

namespace posenc {

/// Attention with linear biases (ALiBi; Press et al. 2022, arXiv:2108.12409): softmax(scale·q·kᵀ −
/// slope·|distance|)·v, tile by tile: memory is O(L), no L × S matrix exists in forward or
/// backward.
///
/// Key blocks so far away that they cannot change the result are skipped: a row may lose less than
/// ε of its softmax mass (2⁻²⁴ for float32, 2⁻¹⁴ for half types, 2⁻⁵³ for float64), so |Δout| ≤
/// ε·max‖v‖. A key or value that is NaN or infinite is never skipped, with one exception: with at
/// most 16 query rows per key head (a decode step) and no `key_norms`, values that a row gives no
/// weight are not read.
///
/// \param q (B, H, L, D), any strides; float64, float32, bfloat16 or float16, computed in float64
/// or float32. \param k (B, Hkv, S, D), \param v (B, Hkv, S, Dv). Query head h reads key head h //
/// (H / Hkv). \param slopes one per query head, `alibi_slopes(H)`; 0 for a head without bias.
/// \param mask bool, True = keep, broadcast to (B, H, L, S). What it blocks is not touched: NaN
/// there does not come through. \param is_causal a key is seen when its position ≤ the query's;
/// combines with mask. \param scale 1/√D unless given. \param offset position of query 0 minus
/// position of key 0; S − L unless given (a cache: the last query sees all keys). \param
/// q_positions (L), (1, L) or (B, L), integer or real: absolute query positions, in place of
/// offset. \param k_positions (S), (1, S) or (B, S): absolute key positions; 0 … S − 1 unless
/// given. \param key_norms (B, Hkv, ⌈S/64⌉) as `alibi_key_norms` makes them: upper bounds, so that
/// a decode step need not read far
///   keys at all. Bounds that are too small give wrong results.
/// Scores are float32 (float64): a row whose nearest key is far carries the rounding of slope ·
/// distance, as dense attention would. \return out (B, H, L, Dv) in q's dtype, and the log-sum-exp
/// of the scores (B, H, L) in float32 (float64 for float64). A row
///   with no allowed key has out 0 and log-sum-exp −∞. Both are differentiable in q, k and v,
///   twice; the second derivative, forward mode, torch.func and devices without a kernel use the
///   dense formula.
/// \throws c10::ValueError / TypeError naming the argument, what was expected and what came.
POSENC_API std::tuple<at::Tensor, at::Tensor> alibi_attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::ArrayRef<double> slopes,
    const std::optional<at::Tensor>& mask = std::nullopt, bool is_causal = false,
    std::optional<double> scale = std::nullopt, std::optional<c10::SymInt> offset = std::nullopt,
    const std::optional<at::Tensor>& q_positions = std::nullopt,
    const std::optional<at::Tensor>& k_positions = std::nullopt,
    const std::optional<at::Tensor>& key_norms = std::nullopt);

/// The same with slopes as a tensor, (H) or (B, H), and differentiable in them.
POSENC_API std::tuple<at::Tensor, at::Tensor> alibi_attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& slopes,
    const std::optional<at::Tensor>& mask = std::nullopt, bool is_causal = false,
    std::optional<double> scale = std::nullopt, std::optional<c10::SymInt> offset = std::nullopt,
    const std::optional<at::Tensor>& q_positions = std::nullopt,
    const std::optional<at::Tensor>& k_positions = std::nullopt,
    const std::optional<at::Tensor>& key_norms = std::nullopt);

/// The largest ‖k‖ in each block of 64 keys, for `key_norms`; infinite where a key or value of the
/// block is not finite. \param k (B, Hkv, S, D). \param v (B, Hkv, S, Dv). \return (B, Hkv,
/// ⌈S/64⌉), float32 (float64 for float64); not differentiable. Each is rounded up, never down.
POSENC_API at::Tensor alibi_key_norms(const at::Tensor& k, const at::Tensor& v);

/// How many key blocks `alibi_attention` computes with these arguments, and how many there are that
/// position and causality leave: int64 {forward computed, forward total, backward computed,
/// backward total}. Runs both. Blocks are of 64 keys for one tile of query rows.
POSENC_API at::Tensor alibi_attention_blocks(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::ArrayRef<double> slopes,
    const std::optional<at::Tensor>& mask = std::nullopt, bool is_causal = false,
    std::optional<double> scale = std::nullopt, std::optional<c10::SymInt> offset = std::nullopt,
    const std::optional<at::Tensor>& q_positions = std::nullopt,
    const std::optional<at::Tensor>& k_positions = std::nullopt,
    const std::optional<at::Tensor>& key_norms = std::nullopt);

/// Puts together attention over two parts of the keys from outputs and log-sum-exps (of
/// alibi_attention, or any other attention that returns them). Safe in value and gradient where one
/// or both parts had no allowed key (−∞). \param out1, out2 (…, Dv), \param lse1, lse2 (…) of the
/// same leading shape. \return out in out1's dtype, lse in lse1's.
POSENC_API std::tuple<at::Tensor, at::Tensor> merge_attention(const at::Tensor& out1,
                                                              const at::Tensor& lse1,
                                                              const at::Tensor& out2,
                                                              const at::Tensor& lse2);

}  // namespace posenc
