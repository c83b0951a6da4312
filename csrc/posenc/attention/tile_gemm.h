#pragma once

#include <c10/util/BFloat16.h>

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

/// C (m × n, float) = A (m × k) · B (k × n) of bfloat16. B comes in pairs of rows: element (p, j)
/// stands at (p / 2 · n + j) · 2 + p % 2; k is even.
using Bf16GemmFn = void (*)(int64_t m, int64_t n, int64_t k, const c10::BFloat16* a, int64_t lda,
                            const c10::BFloat16* b, float* c, int64_t ldc, bool accumulate);

/// The product of bfloat16 tiles where the processor multiplies them faster than floats (AMX);
/// nullptr elsewhere.
Bf16GemmFn tile_gemm_bf16();

/// Gives back what brgemm holds in the calling thread. Call it at the end of a thread's share of
/// the work.
void tile_gemm_release();

}  // namespace posenc::attention
