#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <posenc/core/macros.h>

#include <optional>

namespace posenc {

/// `weight[input_ids] * scale + PE[position]`: the input of a Transformer
/// (Vaswani et al. 2017, section 3.4) in one pass.
///
/// `input_ids`: (B, L) or (L), int64 or int32. `weight`: (num_rows, d_model),
/// floating. `position_ids`: (L), (1, L) or (B, L), integer or real, by default
/// 0 ... L-1; `offset` is added to them. `inv_freq`, `interleaved`: as in
/// `sinusoidal_encoding`. `scale` multiplies the embedding, not the encoding.
/// `padding_idx`: the row that gets no gradient (as torch::nn::Embedding has
/// it; its output is computed like any other), -1 for none.
///
/// Returns (*input_ids.shape, d_model) in weight's dtype; differentiable in
/// weight, to any order.
/// Throws IndexError, naming id and limit, for an id outside the table (on a
/// GPU the kernel stops instead, as that of torch's embedding does);
/// ValueError for shapes, TypeError for dtypes that do not fit.
POSENC_API at::Tensor embed_tokens(const at::Tensor& input_ids, const at::Tensor& weight,
                                   c10::ArrayRef<double> inv_freq,
                                   const std::optional<at::Tensor>& position_ids = std::nullopt,
                                   c10::SymInt offset = 0, bool interleaved = true,
                                   double scale = 1., int64_t padding_idx = -1);

}  // namespace posenc
