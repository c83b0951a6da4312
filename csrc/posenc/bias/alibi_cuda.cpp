#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <posenc/bias/alibi_args.h>
#include <posenc/bias/alibi_device_args.h>
#include <posenc/bias/alibi_launch.h>
#include <posenc/core/checks.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/core/dispatch.h>
#include <torch/library.h>

namespace posenc::bias {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor alibi_bias_tensor_cuda(const Tensor& slopes, int64_t q_len, int64_t k_len,
                              std::optional<int64_t> offset, bool is_causal,
                              std::optional<at::ScalarType> dtype) {
  check_bias("alibi_bias", slopes, q_len, k_len, dtype);
  const c10::cuda::CUDAGuard guard(slopes.device());
  Tensor out = empty_bias(slopes, q_len, k_len, dtype);
  if (out.numel() == 0) {
    return out;
  }
  const Tensor wide = slopes.to(core::compute_dtype(out.scalar_type())).contiguous();
  core::check_launch(
      "alibi_bias",
      launch_alibi_bias(
          bias_device_params(wide, q_len, k_len, offset.value_or(k_len - q_len), is_causal, out),
          core::gpu_dtype(out.scalar_type()), core::current_stream()));
  return out;
}

Tensor alibi_bias_cuda(at::ArrayRef<double> slopes, int64_t q_len, int64_t k_len,
                       std::optional<int64_t> offset, bool is_causal,
                       std::optional<at::ScalarType> dtype, std::optional<at::Device> device) {
  const at::ScalarType out = bias_dtype(dtype);
  check_bias("alibi_bias", q_len, k_len, out);
  const auto options =
      at::TensorOptions().dtype(core::compute_dtype(out)).device(device.value_or(at::kCUDA));
  return alibi_bias_tensor_cuda(core::float_list_on_gpu(slopes, options), q_len, k_len, offset,
                                is_causal, out);
}

Tensor alibi_softmax_cuda(const Tensor& scores, at::ArrayRef<double> slopes,
                          const OptionalTensor& mask, bool is_causal, double scale,
                          std::optional<int64_t> offset) {
  check_softmax("alibi_softmax", scores, slopes.size(), mask);
  const c10::cuda::CUDAGuard guard(scores.device());
  Tensor out = at::empty_like(scores);
  if (out.numel() == 0) {
    return out;
  }
  const Tensor expanded = mask.has_value() ? mask->expand(scores.sizes()) : Tensor();
  const int64_t first = offset.value_or(scores.size(3) - scores.size(2));
  // The slopes travel in the launch; what does not fit there is another launch.
  constexpr int64_t kMost = AlibiSoftmaxDeviceParams::kMaxHeads;
  const int64_t heads = scores.size(1);
  for (int64_t begin = 0; begin < heads; begin += kMost) {
    const int64_t count = std::min(kMost, heads - begin);
    const auto part = [&](const Tensor& t) { return t.defined() ? t.narrow(1, begin, count) : t; };
    core::check_launch(
        "alibi_softmax",
        launch_alibi_softmax(
            softmax_device_params(part(scores), slopes.slice(begin, count), part(expanded),
                                  is_causal, scale, first, part(out)),
            core::gpu_dtype(scores.scalar_type()), core::current_stream()));
  }
  return out;
}

Tensor alibi_softmax_backward_cuda(const Tensor& grad_in, const Tensor& output, double scale) {
  check_softmax_backward(grad_in, output);
  const c10::cuda::CUDAGuard guard(output.device());
  const Tensor grad = grad_in.to(output.scalar_type());
  Tensor out = at::empty_like(output);
  if (out.numel() == 0) {
    return out;
  }
  core::check_launch(
      "_alibi_softmax_backward",
      launch_alibi_softmax_backward(softmax_backward_device_params(grad, output, scale, out),
                                    core::gpu_dtype(output.scalar_type()), core::current_stream()));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) {
  m.impl("alibi_bias", alibi_bias_cuda);
  m.impl("alibi_bias.Tensor", alibi_bias_tensor_cuda);
  m.impl("alibi_softmax", alibi_softmax_cuda);
  m.impl("_alibi_softmax_backward", alibi_softmax_backward_cuda);
}

}  // namespace posenc::bias
