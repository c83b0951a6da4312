#pragma once

#include <ATen/core/Tensor.h>
#include <posenc/core/macros.h>

#include <optional>
#include <string_view>

namespace posenc {

/// Reorders the rows of a q or k projection, so that a model trained with one layout of the pairs
/// runs with the other: the scores stay what they were, because q and k are reordered alike.
///
/// To "half" is what the conversion of Meta's Llama weights for transformers does; the inverse of
/// each is the other. An operator of plain calls: traces, differentiates, any dtype.
///
/// \param weight (n_heads · D, …): a weight (n_heads · D, in), a bias (n_heads · D), or the B
/// matrix of a low-rank update. For k, n_heads is the number of key heads.
/// \param to "half": pairs (2i, 2i + 1) become (i, i + rotary_dim / 2); "interleaved": the reverse.
/// \param rotary_dim rotated channels of a head, even; default: all from rotary_start on. The rest
/// stays in place.
/// \param rotary_start the first rotated channel.
/// \throws c10::ValueError naming the argument.
POSENC_API at::Tensor convert_rope_weights(const at::Tensor& weight, int64_t n_heads,
                                           std::string_view to,
                                           std::optional<int64_t> rotary_dim = std::nullopt,
                                           int64_t rotary_start = 0);

}  // namespace posenc
