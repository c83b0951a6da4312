#include <ATen/ops/empty_like.h>
#include <posenc/absolute/learned_checks.h>
#include <posenc/absolute/learned_gradient.h>
#include <posenc/absolute/rows_cuda.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

at::Tensor add_positions_cuda(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& position_ids, int64_t offset,
                              int64_t seq_dim) {
  const int64_t axis = check_add_positions(x, weight, position_ids, offset, seq_dim);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  if (y.numel() == 0) {
    return y;
  }
  const at::Tensor table = weight.stride(1) == 1 ? weight : weight.contiguous();
  const at::Tensor ids = position_ids.has_value() ? readable_ids(*position_ids) : at::Tensor();
  RowsDeviceParams params;
  if (!add_device_params(x, axis, id_view(ids, offset), y, &params)) {
    return y.copy_(add_positions_cuda(x.contiguous(), weight, position_ids, offset, axis));
  }
  params.addend = table_view(table);
  choose_packs(&params, x.element_size());
  core::check_launch("add_positions",
                     launch_rows(RowsKernel::kAddPositions, params,
                                 core::gpu_dtype(x.scalar_type()), core::current_stream()));
  return y;
}

// The sums are ATen's, in a fixed order; what is ours is that a position outside the table stops
// the kernel.
at::Tensor add_positions_backward_cuda(const at::Tensor& grad, int64_t num_rows,
                                       const std::optional<at::Tensor>& position_ids,
                                       int64_t offset, int64_t seq_dim) {
  const c10::cuda::CUDAGuard guard(grad.device());
  if (position_ids.has_value()) {
    check_add_positions_backward(grad, num_rows, position_ids, offset, seq_dim);
    const at::Tensor ids = readable_ids(*position_ids);
    const CheckIdsParams params{id_view(ids, offset), ids.dim() == 2 ? ids.size(0) : 1,
                                ids.size(-1), num_rows};
    core::check_launch("_add_positions_backward", launch_check_ids(params, core::current_stream()));
  }
  return add_positions_gradient(grad, num_rows, position_ids, offset, seq_dim);
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) {
  m.impl("add_positions", TORCH_FN(add_positions_cuda));
  m.impl("_add_positions_backward", TORCH_FN(add_positions_backward_cuda));
}

}  // namespace posenc::absolute
