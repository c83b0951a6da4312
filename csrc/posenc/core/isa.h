#pragma once

#include <posenc/core/macros.h>

namespace posenc::core {

enum class Isa { kDefault, kAvx2, kAvx512 };

/// The instruction set that ATen itself runs with, read once: it follows ATEN_CPU_CAPABILITY, so
/// one variable switches both.
Isa current_isa();

}  // namespace posenc::core

// A loop file x_simd.cpp is compiled once per instruction set and defines one constant table of
// function pointers in a namespace of that name; everything else in it is anonymous. The macros
// declare the tables and pick one.
//
//   // x_kernels.h
//   struct XKernels { void (*add)(const AddParams&); };
//   POSENC_DECLARE_ISA_TABLE(XKernels, x_kernels)         -> const XKernels& x_kernels();
//   // x_simd.cpp, last lines
//   POSENC_DEFINE_ISA_TABLE(XKernels, x_kernels, {&add})
#if defined(__x86_64__)
#define POSENC_DECLARE_ISA_TABLE(Table, name)          \
  namespace DEFAULT {                                  \
  extern const Table name##_table;                     \
  }                                                    \
  namespace AVX2 {                                     \
  extern const Table name##_table;                     \
  }                                                    \
  namespace AVX512 {                                   \
  extern const Table name##_table;                     \
  }                                                    \
  [[maybe_unused]] static inline const Table& name() { \
    switch (::posenc::core::current_isa()) {           \
      case ::posenc::core::Isa::kAvx512:               \
        return AVX512::name##_table;                   \
      case ::posenc::core::Isa::kAvx2:                 \
        return AVX2::name##_table;                     \
      default:                                         \
        return DEFAULT::name##_table;                  \
    }                                                  \
  }
#else
#define POSENC_DECLARE_ISA_TABLE(Table, name) \
  namespace DEFAULT {                         \
  extern const Table name##_table;            \
  }                                           \
  [[maybe_unused]] static inline const Table& name() { return DEFAULT::name##_table; }
#endif

#define POSENC_DEFINE_ISA_TABLE(Table, name, ...) \
  namespace CPU_CAPABILITY {                      \
  extern const Table name##_table;                \
  const Table name##_table = __VA_ARGS__;         \
  }
