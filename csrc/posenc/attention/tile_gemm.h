#pragma once

#include <cstdint>

namespace posenc::attention {

/// C (m × n) = A (m × k) · B (k × n), or C += A · B; all row-major, leading dimensions in elements.
template <typename T>
using GemmFn = void (*)(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
                        int64_t ldb, T* c, int64_t ldc, bool accumulate);

/// The fastest product for tiles that this libtorch offers on this processor: its brgemm, its BLAS,
/// or a plain loop. One thread computes one product; results do not depend on the number of
/// threads.
template <typename T>
GemmFn<T> tile_gemm();

/// Gives back what brgemm holds in the calling thread. Call it at the end of a thread's share of
/// the work.
void tile_gemm_release();

}  // namespace posenc::attention
