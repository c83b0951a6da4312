#include <posenc/absolute/embedding_checks.h>
#include <posenc/absolute/rows_cuda.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

// The gradient stays ATen's embedding_dense_backward, as on the CPU: it sorts the ids and sums in a
// fixed order, without atomics.
at::Tensor embed_tokens_cuda(const at::Tensor& input_ids, const at::Tensor& weight,
                             c10::ArrayRef<double> inv_freq,
                             const std::optional<at::Tensor>& position_ids, int64_t offset,
                             bool interleaved, double scale, int64_t padding_idx) {
  check_embed_tokens(input_ids, weight, inv_freq, position_ids, padding_idx);
  const c10::cuda::CUDAGuard guard(weight.device());
  at::Tensor y = empty_embedding(input_ids, weight);
  if (y.numel() == 0) {
    return y;
  }
  const at::Tensor table = weight.stride(1) == 1 ? weight : weight.contiguous();
  const at::Tensor ids = position_ids.has_value() ? readable_ids(*position_ids) : at::Tensor();
  const RowsDeviceParams params =
      embed_device_params(input_ids, table, id_view(ids, offset), scale, y);
  launch_slices("embed_tokens", RowsKernel::kEmbedTokens, params, inv_freq, interleaved,
                weight.scalar_type());
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) { m.impl("embed_tokens", TORCH_FN(embed_tokens_cuda)); }

}  // namespace posenc::absolute
