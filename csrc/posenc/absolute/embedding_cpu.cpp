#include <posenc/absolute/dtype_loops.h>
#include <posenc/absolute/embedding_checks.h>
#include <posenc/absolute/embedding_kernels.h>
#include <posenc/absolute/encoding.h>
#include <posenc/absolute/learned_checks.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/parallel.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

at::Tensor embed_tokens_cpu(const at::Tensor& input_ids, const at::Tensor& weight,
                            c10::ArrayRef<double> inv_freq,
                            const std::optional<at::Tensor>& position_ids, int64_t offset,
                            bool interleaved, double scale, int64_t padding_idx) {
  check_embed_tokens(input_ids, weight, inv_freq, position_ids, padding_idx);
  const at::Tensor ids =
      checked_ids("embed_tokens", "input_ids", input_ids, /*offset=*/0, weight.size(0));
  at::Tensor y = empty_embedding(input_ids, weight);
  if (y.numel() == 0) {
    return y;
  }
  const core::Positions positions = core::make_positions(position_ids, offset);
  const at::Tensor table = weight.stride(1) == 1 ? weight : weight.contiguous();
  EmbedTokensParams params;
  params.source = encoding_source(inv_freq, interleaved, positions);
  params.batch = input_ids.dim() == 2 ? input_ids.size(0) : 1;
  params.length = input_ids.size(-1);
  params.channels = weight.size(1);
  params.grid =
      tile_grid(params.batch, params.length, params.channels,
                weight.scalar_type() == at::kDouble ? 8 : 4, positions.view.shared_by_batch());
  params.input_ids = ids.const_data_ptr<int64_t>();
  params.weight = table.const_data_ptr();
  params.weight_row_stride = table.stride(0);
  params.scale = scale;
  params.y = y.mutable_data_ptr();
  const auto embed = loops_for(embedding_kernels(), weight.scalar_type());
  core::parallel_tasks(params.grid.tasks(), y.numel() / params.grid.tasks(),
                       [&](int64_t begin, int64_t end) { embed(params, begin, end); });
  return y;
}

TORCH_LIBRARY_IMPL(posenc, CPU, m) { m.impl("embed_tokens", TORCH_FN(embed_tokens_cpu)); }

}  // namespace
}  // namespace posenc::absolute
