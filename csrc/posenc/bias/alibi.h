#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <optional>
#include <vector>

namespace posenc {

/// ALiBi's slopes (Press et al. 2022, arXiv:2108.12409), one per head, in float64.
///
/// For a power of two heads the series 2^(−b/H), 2^(−2b/H), … down to 2^(−b). For other counts what
/// the authors' code and all published checkpoints use: the series for the next lower power of two,
/// then every second slope of the next higher one. \param n_heads how many slopes to return, ≥ 1.
/// \param bias_max b, 8 in the paper (MPT: alibi_bias_max).
/// \param head_start, total_heads tensor parallelism: slopes [head_start, head_start + n_heads) of
/// a model with total_heads heads;
///   n_heads unless given. A rank must not start the series anew.
/// \param geometric the paper's sentence taken literally: 2^(−b(h+1)/H) for every H. Not what
/// checkpoints use. \throws c10::ValueError for counts that do not fit.
POSENC_API std::vector<double> alibi_slopes(int64_t n_heads, double bias_max = 8.0,
                                            int64_t head_start = 0,
                                            std::optional<int64_t> total_heads = std::nullopt,
                                            bool geometric = false);

/// The bias matrix −slope·|i + offset − j|, (H, q_len, k_len). To look at, or for attention that
/// takes a dense mask; alibi_attention needs no such matrix.
///
/// Under a causal mask any number added to a whole row cancels in the softmax, so the forms slope·j
/// (BLOOM), slope·(j − i) and this one give the same weights; only this true distance is right
/// without a causal mask and for the log-sum-exp. \param offset position of query 0 minus position
/// of key 0; k_len − q_len unless given. \param is_causal −infinity where the key comes after the
/// query. \param dtype of the result, the default dtype unless given; computed in float32 (float64
/// for float64) and rounded once.
POSENC_API at::Tensor alibi_bias(at::ArrayRef<double> slopes, c10::SymInt q_len, c10::SymInt k_len,
                                 std::optional<c10::SymInt> offset = std::nullopt,
                                 bool is_causal = false,
                                 std::optional<at::ScalarType> dtype = std::nullopt,
                                 std::optional<at::Device> device = std::nullopt);

/// The same with slopes (H) or (B, H) as a tensor, differentiable in them; (H, q_len, k_len) or (B,
/// H, q_len, k_len), of the slopes' dtype unless `dtype` is given.
POSENC_API at::Tensor alibi_bias(const at::Tensor& slopes, c10::SymInt q_len, c10::SymInt k_len,
                                 std::optional<c10::SymInt> offset = std::nullopt,
                                 bool is_causal = false,
                                 std::optional<at::ScalarType> dtype = std::nullopt);

/// softmax(scale·scores − slope·distance) in one pass over scores that exist already.
///
/// \param scores (B, H, L, S), any strides; the weights have their dtype, computed in float32
/// (float64). \param slopes one per head. \param mask bool, True = keep, broadcast to (B, H, L, S),
/// read by its strides. Masked scores are not touched. \param is_causal, offset as in alibi_bias.
/// \return weights (B, H, L, S); a row with no allowed key is 0.
POSENC_API at::Tensor alibi_softmax(const at::Tensor& scores, at::ArrayRef<double> slopes,
                                    const std::optional<at::Tensor>& mask = std::nullopt,
                                    bool is_causal = false, double scale = 1.0,
                                    std::optional<c10::SymInt> offset = std::nullopt);

}  // namespace posenc
