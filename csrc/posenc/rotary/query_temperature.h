#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <vector>

namespace posenc {

/// Temperature of queries for long contexts: q at position p times
/// 1 + beta·ln(1 + ⌊(p + shift) / floor_scale⌋).
///
/// A softmax over more keys is flatter; a query that grows with the logarithm of its position
/// undoes it. Nothing changes, bit for bit, at positions p + shift < floor_scale (negative ones
/// too). Llama 4, on its layers without rope: beta 0.1, floor_scale 8192, shift 1. Ministral 3 and
/// Mistral 4, on every layer, after the rotation: beta their `llama_4_scaling_beta`, floor_scale
/// their `original_max_position_embeddings`, shift 0.
///
/// The factor is evaluated in float64 and rounded once to float32 (float64 for float64 q), in which
/// the product is computed; it is not rounded to a half type first, as some models' own code does.
///
/// \param q (…, D), any strides, usually (B, L, H, D); float64, float32, bfloat16 or float16.
/// \param beta growth with each e-fold of the position's step.
/// \param floor_scale positions of one step, > 0.
/// \param position_ids (L), (1, L) or (B, L), integer or real. None: 0 … L − 1.
/// \param offset added to every position: the number of tokens before this call.
/// \param seq_dim the axis that is time.
/// \param shift added to the position before the division.
/// \return a tensor of q's shape and dtype.
/// \throws c10::ValueError / TypeError naming the argument, what was expected and what came.
POSENC_API at::Tensor query_temperature(
    const at::Tensor& q, double beta, double floor_scale,
    const std::optional<at::Tensor>& position_ids = std::nullopt, c10::SymInt offset = 0,
    int64_t seq_dim = 1, double shift = 0.0);

/// Which layers have no rope where every `every`-th goes without, counted from 1: layer l is true
/// where (l + 1) is a multiple of `every` (Llama 4, SmolLM3, Mistral Large 4: every 4th).
/// Their configurations list the opposite under the name `no_rope_layers`: 1 where rope is used.
/// \return n_layers entries. \throws c10::ValueError for n_layers < 0 or every < 1.
POSENC_API std::vector<bool> nope_layers(int64_t n_layers, int64_t every = 4);

namespace rotary {

/// Checks the numbers of a temperature; `where` names the caller.
void check_temperature(const char* where, double beta, double floor_scale, double shift);

}  // namespace rotary
}  // namespace posenc
