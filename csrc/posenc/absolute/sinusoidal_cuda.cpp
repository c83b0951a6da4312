#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <posenc/absolute/rows_cuda.h>
#include <posenc/absolute/sinusoidal_checks.h>
#include <torch/library.h>

namespace posenc::absolute {
namespace {

at::Tensor sinusoidal_encoding_cuda(const at::Tensor& position_ids, c10::ArrayRef<double> inv_freq,
                                    int64_t d_model, bool interleaved,
                                    std::optional<at::ScalarType> dtype) {
  const at::ScalarType result = check_sinusoidal_encoding(position_ids, inv_freq, d_model, dtype);
  const c10::cuda::CUDAGuard guard(position_ids.device());
  std::vector<int64_t> shape = position_ids.sizes().vec();
  shape.push_back(d_model);
  at::Tensor y = at::empty(shape, position_ids.options().dtype(result));
  if (y.numel() == 0) {
    return y;
  }
  const at::Tensor ids = readable_ids(position_ids).reshape({-1});
  const RowsDeviceParams params = encoding_device_params(id_view(ids, 0), y.view({-1, d_model}));
  launch_slices("sinusoidal_encoding", RowsKernel::kEncoding, params, inv_freq, interleaved,
                result);
  return y;
}

at::Tensor add_sinusoidal_cuda(const at::Tensor& x, c10::ArrayRef<double> inv_freq,
                               const std::optional<at::Tensor>& position_ids, int64_t offset,
                               int64_t seq_dim, bool interleaved, double scale) {
  const int64_t axis = check_add_sinusoidal(x, inv_freq, position_ids, seq_dim);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  if (y.numel() == 0) {
    return y;
  }
  const at::Tensor ids = position_ids.has_value() ? readable_ids(*position_ids) : at::Tensor();
  RowsDeviceParams params;
  if (!add_device_params(x, axis, id_view(ids, offset), y, &params)) {
    return y.copy_(add_sinusoidal_cuda(x.contiguous(), inv_freq, position_ids, offset, axis,
                                       interleaved, scale));
  }
  params.scale = scale;
  choose_packs(&params, x.element_size());
  launch_slices("add_sinusoidal", RowsKernel::kAddSinusoidal, params, inv_freq, interleaved,
                x.scalar_type());
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) {
  m.impl("sinusoidal_encoding", TORCH_FN(sinusoidal_encoding_cuda));
  m.impl("add_sinusoidal", TORCH_FN(add_sinusoidal_cuda));
}

}  // namespace posenc::absolute
