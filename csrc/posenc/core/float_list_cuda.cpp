#include <ATen/ops/empty.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/float_list_launch.h>

#include <algorithm>

namespace posenc::core {

at::Tensor float_list_on_gpu(at::ArrayRef<double> values, const at::TensorOptions& options) {
  at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, options);
  const c10::cuda::CUDAGuard guard(out.device());
  FloatListParams params{};
  params.is_double = out.scalar_type() == at::kDouble;
  for (size_t begin = 0; begin < values.size(); begin += FloatListParams::kMost) {
    const auto part =
        values.slice(begin, std::min<size_t>(FloatListParams::kMost, values.size() - begin));
    params.count = static_cast<int32_t>(part.size());
    params.out = static_cast<char*>(out.mutable_data_ptr()) + begin * out.element_size();
    std::copy(part.begin(), part.end(), params.values);
    check_launch("posenc", launch_float_list(params, current_stream()));
  }
  return out;
}

}  // namespace posenc::core
