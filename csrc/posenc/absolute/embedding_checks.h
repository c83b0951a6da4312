#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace posenc::absolute {

/// Arguments of embed_tokens, checked the same way by every key. ValueError, TypeError.
void check_embed_tokens(const at::Tensor& input_ids, const at::Tensor& weight,
                        c10::ArrayRef<double> inv_freq,
                        const std::optional<at::Tensor>& position_ids, int64_t padding_idx);

/// The operator's output, (…, weight's columns).
at::Tensor empty_embedding(const at::Tensor& input_ids, const at::Tensor& weight);

}  // namespace posenc::absolute
