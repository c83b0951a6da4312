// The kernels of alibi_bias and alibi_softmax; their bodies stand in alibi_bias_device.h and
// alibi_softmax_device.h.

#include <posenc/bias/alibi_launch.h>
#include <posenc/core/gpu_dtype.h>
#include <posenc/core/gpu_launch.h>

namespace posenc::bias {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kScoreThreads)
    alibi_bias_kernel(const __grid_constant__ AlibiBiasDeviceParams p) {
  alibi_bias_body<T, N>(core::CudaContext(), p);
}

template <class T, int N, bool kWholeBlock, bool kKept>
__global__ void __launch_bounds__(kScoreThreads)
    alibi_softmax_kernel(const __grid_constant__ AlibiSoftmaxDeviceParams p) {
  alibi_softmax_body<T, N, kWholeBlock, kKept>(core::CudaContext(), p);
}

template <class T, int N, bool kWholeBlock, bool kKept>
__global__ void __launch_bounds__(kScoreThreads)
    alibi_softmax_backward_kernel(const __grid_constant__ AlibiSoftmaxDeviceParams p) {
  alibi_softmax_backward_body<T, N, kWholeBlock, kKept>(core::CudaContext(), p);
}

template <class T, int N>
cudaError_t launch_softmax(const AlibiSoftmaxDeviceParams& p, cudaStream_t stream) {
  return with_plan(softmax_plan<T>(p.k_len, /*backward=*/false), [&](auto whole, auto kept) {
    return core::launch(alibi_softmax_kernel<T, N, whole(), kept()>,
                        softmax_grid<T>(p, /*backward=*/false), p, stream);
  });
}

template <class T, int N>
cudaError_t launch_backward(const AlibiSoftmaxDeviceParams& p, cudaStream_t stream) {
  return with_plan(softmax_plan<T>(p.k_len, /*backward=*/true), [&](auto whole, auto kept) {
    return core::launch(alibi_softmax_backward_kernel<T, N, whole(), kept()>,
                        softmax_grid<T>(p, /*backward=*/true), p, stream);
  });
}

}  // namespace

cudaError_t launch_alibi_bias(const AlibiBiasDeviceParams& p, core::Dtype dtype,
                              cudaStream_t stream) {
  return core::with_number(dtype, [&](auto number) {
    using T = decltype(number);
    const core::GridShape grid = alibi_bias_grid<T>(p);
    return p.packed ? core::launch(alibi_bias_kernel<T, core::kFullPack<T>>, grid, p, stream)
                    : core::launch(alibi_bias_kernel<T, 1>, grid, p, stream);
  });
}

cudaError_t launch_alibi_softmax(const AlibiSoftmaxDeviceParams& p, core::Dtype dtype,
                                 cudaStream_t stream) {
  return core::with_number(dtype, [&](auto number) {
    using T = decltype(number);
    return p.packed ? launch_softmax<T, core::kFullPack<T>>(p, stream)
                    : launch_softmax<T, 1>(p, stream);
  });
}

cudaError_t launch_alibi_softmax_backward(const AlibiSoftmaxDeviceParams& p, core::Dtype dtype,
                                          cudaStream_t stream) {
  return core::with_number(dtype, [&](auto number) {
    using T = decltype(number);
    return p.packed ? launch_backward<T, core::kFullPack<T>>(p, stream)
                    : launch_backward<T, 1>(p, stream);
  });
}

}  // namespace posenc::bias
