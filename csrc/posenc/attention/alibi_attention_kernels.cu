// Kernels and launches of biased attention. Bodies: attention_*_device.h.

#include <posenc/attention/attention_launch.h>
#include <posenc/attention/attention_passes.h>
#include <posenc/core/gpu_launch.h>

namespace posenc::attention::device {
namespace {

template <class Pass>
__global__ void __launch_bounds__(Pass::kBlock, 1)
    attention_kernel(const __grid_constant__ typename Pass::Arguments p) {
  Pass::body(core::CudaContext{}, p);
}

/// Launches passes one after another and keeps the first error.
class Launcher {
 public:
  explicit Launcher(cudaStream_t stream) : stream_(stream) {}

  template <class Pass>
  void run(const typename Pass::Arguments& p) const {
    if (error_ == cudaSuccess) {
      error_ = core::launch(attention_kernel<Pass>, Pass::grid(p), p, stream_);
    }
  }

  /// Whether the kernels for tensor cores that this device would run were compiled for 8.0 or later
  /// (a build for 7.5 alone runs anywhere, by just-in-time compilation).
  bool has_tensor_cores() const {
    cudaFuncAttributes attributes{};
    void (*kernel)(Params) = attention_kernel<ForwardPass<Mma<Half, 16>, bias::AlibiBias>>;
    if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    return attributes.ptxVersion >= 80;
  }

  cudaError_t error() const { return error_; }

 private:
  cudaStream_t stream_;
  mutable cudaError_t error_ = cudaSuccess;
};

}  // namespace

cudaError_t launch_keys(const Params& p, const double* given, cudaStream_t stream) {
  const Launcher launcher(stream);
  if (p.dtype == Dtype::kDouble) {
    run_keys<double>(launcher, p, given);
  } else {
    run_keys<float>(launcher, p, given);
  }
  return launcher.error();
}

cudaError_t launch_forward(const Params& p, cudaStream_t stream) {
  const Launcher launcher(stream);
  run_forward<bias::AlibiBias>(launcher, p);
  return launcher.error();
}

cudaError_t launch_backward(const Params& p, cudaStream_t stream) {
  const Launcher launcher(stream);
  run_backward<bias::AlibiBias>(launcher, p);
  return launcher.error();
}

}  // namespace posenc::attention::device
