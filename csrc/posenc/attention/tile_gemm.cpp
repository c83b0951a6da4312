#include <c10/core/ScalarType.h>
#include <posenc/attention/tile_gemm.h>

// libtorch exports these, but not in every build (brgemm wants oneDNN on x86, the BLAS may be
// hidden), so they are weak: absent ones are null.
namespace at::native::cpublas {
__attribute__((weak)) void brgemm(int64_t M, int64_t N, int64_t K, int64_t ld_a, int64_t ld_b,
                                  int64_t ld_c, const bool add_C, const float* A, const float* B,
                                  float* C, bool is_vnni);
__attribute__((weak)) void brgemm(int64_t M, int64_t N, int64_t K, int64_t ld_a, int64_t ld_b,
                                  int64_t ld_c, const bool add_C, const at::BFloat16* A,
                                  const at::BFloat16* B, float* C, bool is_vnni);
__attribute__((weak)) void brgemm_release(bool is_vnni);
__attribute__((weak)) bool could_pack(c10::ScalarType dtype);
}  // namespace at::native::cpublas

extern "C" {
__attribute__((weak)) void sgemm_(const char*, const char*, const int*, const int*, const int*,
                                  const float*, const float*, const int*, const float*, const int*,
                                  const float*, float*, const int*);
__attribute__((weak)) void dgemm_(const char*, const char*, const int*, const int*, const int*,
                                  const double*, const double*, const int*, const double*,
                                  const int*, const double*, double*, const int*);
}

namespace posenc::attention {
namespace {

using BrgemmF32 = void(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float*,
                       const float*, float*, bool);
using BrgemmBf16 = void(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool,
                        const at::BFloat16*, const at::BFloat16*, float*, bool);

void gemm_brgemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                 int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, accumulate, a, b, c, /*is_vnni=*/false);
}

void gemm_brgemm_bf16(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                      const at::BFloat16* b, float* c, int64_t ldc, bool accumulate) {
  at::native::cpublas::brgemm(m, n, k, lda, n, ldc, accumulate, a, b, c, /*is_vnni=*/true);
}

/// Fortran's BLAS is column-major: it sees the transposes, so C^T = B^T · A^T with the operands
/// exchanged.
template <typename T, auto blas>
void gemm_blas(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
               T* c, int64_t ldc, bool accumulate) {
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k);
  const int ld_a = static_cast<int>(lda), ld_b = static_cast<int>(ldb),
            ld_c = static_cast<int>(ldc);
  const T one = 1, beta = accumulate ? 1 : 0;
  blas("N", "N", &rows, &columns, &inner, &one, b, &ld_b, a, &ld_a, &beta, c, &ld_c);
}

template <typename T>
void gemm_loop(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
               T* c, int64_t ldc, bool accumulate) {
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; !accumulate && j < n; ++j) {
      row[j] = 0;
    }
    for (int64_t p = 0; p < k; ++p) {
      const T factor = a[i * lda + p];
      for (int64_t j = 0; j < n; ++j) {
        row[j] += factor * b[p * ldb + j];
      }
    }
  }
}

void sgemm(const char* ta, const char* tb, const int* m, const int* n, const int* k,
           const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
           const float* beta, float* c, const int* ldc) {
  sgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void dgemm(const char* ta, const char* tb, const int* m, const int* n, const int* k,
           const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
           const double* beta, double* c, const int* ldc) {
  dgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/// brgemm exists in every build of the header's versions but serves float only with oneDNN and
/// AVX2: it throws elsewhere, so one product is tried.
bool brgemm_works() {
  if (static_cast<BrgemmF32*>(at::native::cpublas::brgemm) == nullptr ||
      at::native::cpublas::brgemm_release == nullptr) {
    return false;
  }
  try {
    const float a[16] = {1}, b[16] = {1};
    float c[16] = {0};
    gemm_brgemm(1, 16, 1, a, 1, b, 16, c, 16, false);
    at::native::cpublas::brgemm_release(/*is_vnni=*/false);
    return c[0] == 1;
  } catch (...) {
    return false;
  }
}

/// Where libtorch packs bfloat16, its products run on tile registers. One is tried here too: the
/// layout of B has changed before.
bool brgemm_bf16_works() {
  if (static_cast<BrgemmBf16*>(at::native::cpublas::brgemm) == nullptr ||
      at::native::cpublas::brgemm_release == nullptr ||
      at::native::cpublas::could_pack == nullptr) {
    return false;
  }
  try {
    if (!at::native::cpublas::could_pack(c10::kBFloat16)) {
      return false;
    }
    // (1 2 4 8) times rows of 1, 3, 5 and 7: 83 in every column.
    const at::BFloat16 a[4] = {1, 2, 4, 8};
    at::BFloat16 b[64];
    for (int p = 0; p < 4; ++p) {
      for (int j = 0; j < 16; ++j) {
        b[(p / 2 * 16 + j) * 2 + p % 2] = static_cast<float>(2 * p + 1);
      }
    }
    float c[16] = {0};
    gemm_brgemm_bf16(1, 16, 4, a, 4, b, c, 16, false);
    at::native::cpublas::brgemm_release(/*is_vnni=*/true);
    return c[0] == 83 && c[15] == 83;
  } catch (...) {
    return false;
  }
}

bool use_brgemm_bf16() {
  static const bool works = brgemm_bf16_works();
  return works;
}

bool use_brgemm() {
  static const bool works = brgemm_works();
  return works;
}

}  // namespace

template <>
GemmFn<float> tile_gemm<float>() {
  if (use_brgemm()) {
    return gemm_brgemm;
  }
  return sgemm_ != nullptr ? gemm_blas<float, sgemm> : gemm_loop<float>;
}

template <>
GemmFn<double> tile_gemm<double>() {
  return dgemm_ != nullptr ? gemm_blas<double, dgemm> : gemm_loop<double>;
}

Bf16GemmFn tile_gemm_bf16() { return use_brgemm_bf16() ? gemm_brgemm_bf16 : nullptr; }

void tile_gemm_release() {
  if (use_brgemm() || use_brgemm_bf16()) {
    at::native::cpublas::brgemm_release(/*is_vnni=*/use_brgemm_bf16());
  }
}

}  // namespace posenc::attention
