// The kernels of this room; their bodies stand in rows_body.h.

#include <posenc/absolute/rows_body.h>
#include <posenc/absolute/rows_launch.h>
#include <posenc/core/gpu_dtype.h>
#include <posenc/core/gpu_launch.h>

namespace posenc::absolute {
namespace {

// Two blocks a multiprocessor, so 128 registers: with fewer some spill.
template <class T, int N, template <class> class Source, template <class> class Addend>
__global__ void __launch_bounds__(kRowThreads, 2)
    add_rows_kernel(const __grid_constant__ RowsDeviceParams p) {
  add_rows_body<T, N, Source, Addend>(core::CudaContext(), p);
}

__global__ void __launch_bounds__(kRowThreads)
    check_ids_kernel(const __grid_constant__ CheckIdsParams p) {
  check_ids_body(core::CudaContext(), p);
}

template <template <class> class Source, template <class> class Addend>
cudaError_t launch(const RowsDeviceParams& p, core::Dtype dtype, cudaStream_t stream) {
  return core::with_number(dtype, [&](auto number) {
    using T = decltype(number);
    const core::GridShape grid = rows_grid<T>(p);
    return p.packed ? core::launch(add_rows_kernel<T, core::kFullPack<T>, Source, Addend>, grid, p,
                                   stream)
                    : core::launch(add_rows_kernel<T, 1, Source, Addend>, grid, p, stream);
  });
}

}  // namespace

cudaError_t launch_rows(RowsKernel kernel, const RowsDeviceParams& p, core::Dtype dtype,
                        cudaStream_t stream) {
  switch (kernel) {
    case RowsKernel::kEncoding:
      return launch<NoSource, SinusoidalAddend>(p, dtype, stream);
    case RowsKernel::kAddSinusoidal:
      return launch<TensorSource, SinusoidalAddend>(p, dtype, stream);
    case RowsKernel::kEmbedTokens:
      return launch<TokenSource, SinusoidalAddend>(p, dtype, stream);
    default:
      return launch<TensorSource, TableAddend>(p, dtype, stream);
  }
}

cudaError_t launch_check_ids(const CheckIdsParams& p, cudaStream_t stream) {
  return core::launch(check_ids_kernel, check_ids_grid(p), p, stream);
}

}  // namespace posenc::absolute
