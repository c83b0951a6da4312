#include <ATen/ops/empty_like.h>
#include <posenc/absolute/dtype_loops.h>
#include <posenc/absolute/learned_checks.h>
#include <posenc/absolute/learned_kernels.h>
#include <posenc/absolute/walk_rows.h>
#include <posenc/core/parallel.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

at::Tensor add_positions_cpu(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& position_ids, int64_t offset,
                             int64_t seq_dim) {
  const int64_t axis = check_add_positions(x, weight, position_ids, offset, seq_dim);
  AddPositionsParams params;
  at::Tensor ids;
  if (position_ids.has_value()) {
    ids = checked_ids("add_positions", "positions", *position_ids, offset, weight.size(0));
    params.position_ids = ids.const_data_ptr<int64_t>();
    params.ids_batch_stride = ids.dim() == 2 && ids.size(0) > 1 ? ids.size(1) : 0;
  }
  at::Tensor y = at::empty_like(x);
  if (y.numel() == 0) {
    return y;
  }
  const at::Tensor table = weight.stride(1) == 1 ? weight : weight.contiguous();
  params.walk = walk_rows(x, y, axis);
  params.x = x.const_data_ptr();
  params.y = y.mutable_data_ptr();
  params.weight = table.const_data_ptr();
  params.weight_row_stride = table.stride(0);
  params.offset = offset;
  const auto add = loops_for(learned_kernels(), x.scalar_type());
  const int64_t rows = params.walk.batch * params.walk.length;
  core::parallel_tasks(rows, y.numel() / rows,
                       [&](int64_t begin, int64_t end) { add(params, begin, end); });
  return y;
}

TORCH_LIBRARY_IMPL(posenc, CPU, m) { m.impl("add_positions", TORCH_FN(add_positions_cpu)); }

}  // namespace
}  // namespace posenc::absolute
