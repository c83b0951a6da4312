#pragma once

// Arithmetic on one row of channels, for the loops of *_simd.cpp. Include it there only.
//
// Every path (whole vectors, the tail, strided channels, each instruction set) multiplies, then
// adds, each rounded on its own: no fused multiply-add, so all of them give the same bits.

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cstdint>

namespace posenc::absolute {
namespace {

/// What the loops compute in: fp32, and fp64 for fp64.
template <typename T>
using Compute = at::vec::vec_scalar_t<T>;

/// y = x * scale + e. `e` has the compute dtype and may be read up to two vectors past its end.
template <typename T>
void scale_add_row(T* y, const T* x, const Compute<T>* e, int64_t n, Compute<T> scale) {
  using Vec = at::vec::Vectorized<T>;
  using ComputeVec = at::vec::Vectorized<Compute<T>>;
  constexpr int64_t step = Vec::size();
  const ComputeVec factor(scale);
  const auto block = [&](const Vec& value, int64_t i) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      return value * factor + ComputeVec::loadu(e + i);
    } else {
      const auto [low, high] = at::vec::convert_to_float<T>(value);
      return at::vec::convert_from_float<T>(
          low * factor + ComputeVec::loadu(e + i),
          high * factor + ComputeVec::loadu(e + i + ComputeVec::size()));
    }
  };
  int64_t i = 0;
  for (; i <= n - step; i += step) {
    block(Vec::loadu(x + i), i).store(y + i);
  }
  if (i < n) {
    block(Vec::loadu(x + i, n - i), i).store(y + i, static_cast<int>(n - i));
  }
}

/// y = x + w, all of dtype T.
template <typename T>
void add_row(T* y, const T* x, const T* w, int64_t n) {
  using Vec = at::vec::Vectorized<T>;
  constexpr int64_t step = Vec::size();
  const auto sum = [](const Vec& a, const Vec& b) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      return a + b;
    } else {
      const auto [a0, a1] = at::vec::convert_to_float<T>(a);
      const auto [b0, b1] = at::vec::convert_to_float<T>(b);
      return at::vec::convert_from_float<T>(a0 + b0, a1 + b1);
    }
  };
  int64_t i = 0;
  for (; i <= n - step; i += step) {
    sum(Vec::loadu(x + i), Vec::loadu(w + i)).store(y + i);
  }
  if (i < n) {
    sum(Vec::loadu(x + i, n - i), Vec::loadu(w + i, n - i)).store(y + i, static_cast<int>(n - i));
  }
}

/// The same for channels that do not lie side by side.
template <typename T>
void scale_add_strided(T* y, int64_t y_stride, const T* x, int64_t x_stride, const Compute<T>* e,
                       int64_t n, Compute<T> scale) {
  for (int64_t i = 0; i < n; ++i) {
    y[i * y_stride] = static_cast<T>(static_cast<Compute<T>>(x[i * x_stride]) * scale + e[i]);
  }
}

template <typename T>
void add_strided(T* y, int64_t y_stride, const T* x, int64_t x_stride, const T* w, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i * y_stride] =
        static_cast<T>(static_cast<Compute<T>>(x[i * x_stride]) + static_cast<Compute<T>>(w[i]));
  }
}

/// Writes a row in the compute dtype as T.
template <typename T>
void store_row(T* y, const Compute<T>* e, int64_t n) {
  using Vec = at::vec::Vectorized<T>;
  using ComputeVec = at::vec::Vectorized<Compute<T>>;
  constexpr int64_t step = Vec::size();
  for (int64_t i = 0; i < n; i += step) {
    const int count = static_cast<int>(i + step <= n ? step : n - i);
    if constexpr (std::is_same_v<T, Compute<T>>) {
      ComputeVec::loadu(e + i).store(y + i, count);
    } else {
      at::vec::convert_from_float<T>(ComputeVec::loadu(e + i),
                                     ComputeVec::loadu(e + i + ComputeVec::size()))
          .store(y + i, count);
    }
  }
}

}  // namespace
}  // namespace posenc::absolute
