#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <posenc/bias/alibi_args.h>
#include <posenc/bias/alibi_kernels.h>
#include <posenc/core/checks.h>
#include <posenc/core/parallel.h>
#include <torch/library.h>

#include <vector>

namespace posenc::bias {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

ScoreStrides strides_of(const Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2), t.stride(3)};
}

/// f(begin, end, scratch) over rows, each thread with scratch of its own.
template <typename F>
void over_rows(int64_t rows, int64_t row_elements, int64_t scratch_elements, const F& f) {
  core::parallel_tasks(rows, row_elements, [&](int64_t begin, int64_t end) {
    std::vector<double> scratch(
        scratch_elements);  // double: aligned and large enough for both compute types
    f(begin, end, scratch.data());
  });
}

/// out: (…, q_len, k_len), contiguous, one matrix for each of the slopes.
Tensor fill_bias(Tensor out, const double* slopes, std::optional<int64_t> offset, bool is_causal) {
  if (out.numel() == 0) {
    return out;
  }
  const int64_t q_len = out.size(-2), k_len = out.size(-1);
  AlibiBiasParams p{};
  p.out = out.mutable_data_ptr();
  p.slopes = slopes;
  p.q_len = q_len;
  p.k_len = k_len;
  p.offset = offset.value_or(k_len - q_len);
  p.causal = is_causal;
  const auto fill = alibi_kernels().of(out.scalar_type()).bias;
  over_rows(out.numel() / k_len, k_len, k_len,
            [&](int64_t begin, int64_t end, void* scratch) { fill(p, begin, end, scratch); });
  return out;
}

Tensor alibi_bias_cpu(at::ArrayRef<double> slopes, int64_t q_len, int64_t k_len,
                      std::optional<int64_t> offset, bool is_causal,
                      std::optional<at::ScalarType> dtype, std::optional<at::Device>) {
  const at::ScalarType out = bias_dtype(dtype);
  check_bias("alibi_bias", q_len, k_len, out);
  return fill_bias(at::empty({static_cast<int64_t>(slopes.size()), q_len, k_len}, out),
                   slopes.data(), offset, is_causal);
}

Tensor alibi_bias_tensor_cpu(const Tensor& slopes, int64_t q_len, int64_t k_len,
                             std::optional<int64_t> offset, bool is_causal,
                             std::optional<at::ScalarType> dtype) {
  check_bias("alibi_bias", slopes, q_len, k_len, dtype);
  const Tensor wide = slopes.to(at::kDouble).contiguous();
  return fill_bias(empty_bias(slopes, q_len, k_len, dtype), wide.const_data_ptr<double>(), offset,
                   is_causal);
}

Tensor alibi_softmax_cpu(const Tensor& scores, at::ArrayRef<double> slopes,
                         const OptionalTensor& mask, bool is_causal, double scale,
                         std::optional<int64_t> offset) {
  check_softmax("alibi_softmax", scores, slopes.size(), mask);
  Tensor out = at::empty_like(scores);
  if (out.numel() == 0) {
    return out;
  }
  AlibiSoftmaxParams p{};
  p.scores = scores.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.score_strides = strides_of(scores);
  p.out_strides = strides_of(out);
  Tensor expanded;
  if (mask.has_value()) {
    expanded = mask->expand(scores.sizes());  // strides 0, no memory
    p.mask = expanded.const_data_ptr<bool>();
    p.mask_strides = strides_of(expanded);
  }
  p.slopes = slopes.data();
  p.heads = scores.size(1);
  p.q_len = scores.size(2);
  p.k_len = scores.size(3);
  p.offset = offset.value_or(p.k_len - p.q_len);
  p.causal = is_causal;
  p.scale = scale;
  const auto softmax = alibi_kernels().of(scores.scalar_type()).softmax;
  over_rows(scores.size(0) * p.heads * p.q_len, 8 * p.k_len, 2 * p.k_len,
            [&](int64_t begin, int64_t end, void* scratch) { softmax(p, begin, end, scratch); });
  return out;
}

Tensor alibi_softmax_backward_cpu(const Tensor& grad_in, const Tensor& output, double scale) {
  check_softmax_backward(grad_in, output);
  const Tensor grad = grad_in.to(output.scalar_type());
  Tensor out = at::empty_like(output);
  if (out.numel() == 0) {
    return out;
  }
  AlibiSoftmaxParams p{};
  p.scores = grad.const_data_ptr();
  p.weights_in = output.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.score_strides = strides_of(grad);
  p.weight_strides = strides_of(output);
  p.out_strides = strides_of(out);
  p.heads = output.size(1);
  p.q_len = output.size(2);
  p.k_len = output.size(3);
  p.scale = scale;
  const auto backward = alibi_kernels().of(output.scalar_type()).softmax_backward;
  over_rows(output.size(0) * p.heads * p.q_len, 4 * p.k_len, 2 * p.k_len,
            [&](int64_t begin, int64_t end, void* scratch) { backward(p, begin, end, scratch); });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  m.impl("alibi_bias", alibi_bias_cpu);
  m.impl("alibi_bias.Tensor", alibi_bias_tensor_cpu);
  m.impl("alibi_softmax", alibi_softmax_cpu);
  m.impl("_alibi_softmax_backward", alibi_softmax_backward_cpu);
}

}  // namespace posenc::bias
