#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <posenc/absolute/dtype_loops.h>
#include <posenc/absolute/encoding.h>
#include <posenc/absolute/sinusoidal_checks.h>
#include <posenc/absolute/sinusoidal_kernels.h>
#include <posenc/absolute/tokens.h>
#include <posenc/absolute/walk_rows.h>
#include <posenc/core/checks.h>
#include <posenc/core/parallel.h>
#include <torch/library.h>

#include <algorithm>

namespace posenc::absolute {
namespace {

at::Tensor sinusoidal_encoding_cpu(const at::Tensor& position_ids, c10::ArrayRef<double> inv_freq,
                                   int64_t d_model, bool interleaved,
                                   std::optional<at::ScalarType> dtype) {
  const at::ScalarType result = check_sinusoidal_encoding(position_ids, inv_freq, d_model, dtype);
  std::vector<int64_t> shape = position_ids.sizes().vec();
  shape.push_back(d_model);
  at::Tensor y = at::empty(shape, position_ids.options().dtype(result));
  if (y.numel() == 0) {
    return y;
  }
  const core::Positions positions = core::make_positions(position_ids.reshape({-1}), 0);
  EncodeParams params;
  params.source = encoding_source(inv_freq, interleaved, positions);
  params.channels = d_model;
  params.y = y.mutable_data_ptr();
  const auto encode = loops_for(sinusoidal_kernels(), result).encode;
  core::parallel_tasks(position_ids.numel(), d_model,
                       [&](int64_t begin, int64_t end) { encode(params, begin, end); });
  return y;
}

at::Tensor add_sinusoidal_cpu(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                              const std::optional<at::Tensor>& position_ids, int64_t offset,
                              int64_t seq_dim, bool interleaved, double scale) {
  const int64_t axis = check_add_sinusoidal(x, inv_freq, position_ids, seq_dim);
  at::Tensor y = at::empty_like(x);
  if (y.numel() == 0) {
    return y;
  }
  const core::Positions positions = core::make_positions(position_ids, offset);
  AddSinusoidalParams params;
  params.source = encoding_source(inv_freq, interleaved, positions);
  params.walk = walk_rows(x, y, axis);
  params.grid = tile_grid(params.walk.batch, params.walk.length, params.walk.channels,
                          x.scalar_type() == at::kDouble ? 8 : 4, positions.view.shared_by_batch());
  params.scale = scale;
  params.x = x.const_data_ptr();
  params.y = y.mutable_data_ptr();
  const auto add = loops_for(sinusoidal_kernels(), x.scalar_type()).add;
  const int64_t task_numel = y.numel() / params.grid.tasks();
  core::parallel_tasks(params.grid.tasks(), task_numel,
                       [&](int64_t begin, int64_t end) { add(params, begin, end); });
  return y;
}

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  m.impl("sinusoidal_encoding", TORCH_FN(sinusoidal_encoding_cpu));
  m.impl("add_sinusoidal", TORCH_FN(add_sinusoidal_cpu));
}

}  // namespace
}  // namespace posenc::absolute
