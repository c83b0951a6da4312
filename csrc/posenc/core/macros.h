#pragma once

/// Marks what libposenc exports; everything else stays inside (the library is compiled with hidden
/// visibility).
#define POSENC_API __attribute__((visibility("default")))

/// A function that the host and the CUDA device share.
#if defined(__CUDACC__)
#define POSENC_HD __host__ __device__
#else
#define POSENC_HD
#endif

/// In front of a loop of constant length over registers, which a CUDA kernel must not index.
#if defined(__CUDA_ARCH__)
#define POSENC_UNROLL _Pragma("unroll")
#else
#define POSENC_UNROLL
#endif
