#pragma once

// Tensors for kernels that HostGpu runs: their memory registered, their dtypes as the kernels name
// them.

#include <gtest/gtest.h>
#include <posenc/core/gpu_dtype.h>
#include <torch/types.h>

#include "support/host_gpu.h"
#include "support/support.h"

namespace posenc::test {

inline const std::vector<at::ScalarType> kGpuDtypes = {at::kDouble, at::kFloat, at::kHalf,
                                                       at::kBFloat16};

/// f(a number of the kernels' type for the dtype)
template <class F>
auto with_number(at::ScalarType dtype, const F& f) {
  return core::with_number(dtype == at::kDouble  ? core::Dtype::kDouble
                           : dtype == at::kFloat ? core::Dtype::kFloat
                           : dtype == at::kHalf  ? core::Dtype::kHalf
                                                 : core::Dtype::kBFloat16,
                           f);
}

/// Elements from the tensor's first to its last, gaps included.
inline int64_t span_of(const at::Tensor& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) {
    last += (t.size(d) - 1) * t.stride(d);
  }
  return t.numel() == 0 ? 0 : last + 1;
}

/// f(base, elements) with the type of the tensor's size.
template <class F>
void with_memory(const at::Tensor& t, const F& f) {
  void* base = const_cast<void*>(t.const_data_ptr());
  switch (t.element_size()) {
    case 1:
      return f(static_cast<uint8_t*>(base), span_of(t));
    case 2:
      return f(static_cast<uint16_t*>(base), span_of(t));
    case 4:
      return f(static_cast<uint32_t*>(base), span_of(t));
    default:
      return f(static_cast<uint64_t*>(base), span_of(t));
  }
}

inline void readable(HostGpu& gpu, const at::Tensor& t, const char* name) {
  with_memory(t, [&](auto* base, int64_t n) { gpu.readable(base, n, name); });
}

inline void writable(HostGpu& gpu, const at::Tensor& t, const char* name) {
  with_memory(t, [&](auto* base, int64_t n) { gpu.writable(base, n, name); });
}

/// Each element of the tensor exactly once, and nothing in its gaps.
inline void written_once(HostGpu& gpu, const at::Tensor& t) {
  std::vector<int> times(span_of(t), 0);
  for (int64_t k = 0; k < t.numel(); ++k) {
    int64_t rest = k, at = 0;
    for (int64_t d = t.dim() - 1; d >= 0; --d) {
      at += rest % t.size(d) * t.stride(d);
      rest /= t.size(d);
    }
    times[at] = 1;
  }
  with_memory(t, [&](auto* base, int64_t n) {
    gpu.expect_written(base, n, [&](int64_t i) { return times[i]; });
  });
}

/// Within `tolerance`, with infinities and NaNs at equal places.
inline void expect_equal_or_near(const at::Tensor& got, const at::Tensor& want, double tolerance) {
  ASSERT_EQ(got.sizes(), want.sizes());
  const at::Tensor a = got.to(at::kDouble).contiguous(), e = want.to(at::kDouble).contiguous();
  const double *x = a.const_data_ptr<double>(), *y = e.const_data_ptr<double>();
  for (int64_t i = 0; i < a.numel(); ++i) {
    const bool same = std::isnan(y[i])   ? std::isnan(x[i])
                      : std::isinf(y[i]) ? x[i] == y[i]
                                         : std::abs(x[i] - y[i]) <= tolerance;
    ASSERT_TRUE(same) << "element " << i << " of " << got.sizes() << " " << got.scalar_type()
                      << ": got " << x[i] << ", expected " << y[i];
  }
}

}  // namespace posenc::test
