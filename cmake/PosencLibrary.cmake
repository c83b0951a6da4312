# libposenc. A file's name says how it is compiled, so a new encoding needs no line here (design: every room has the same plan):
#   x_simd.cpp           pointer-only loops, once per instruction set
#   x_cuda.cpp, x.cu     with CUDA only
#   everything else      once
file(GLOB POSENC_SOURCES CONFIGURE_DEPENDS csrc/posenc/*/*.cpp)
set(POSENC_SIMD_SOURCES ${POSENC_SOURCES})
list(FILTER POSENC_SIMD_SOURCES INCLUDE REGEX "_simd\\.cpp$")
list(FILTER POSENC_SOURCES EXCLUDE REGEX "_(simd|cuda)\\.cpp$")
if(POSENC_WITH_CUDA)
  file(GLOB POSENC_CUDA_SOURCES CONFIGURE_DEPENDS csrc/posenc/*/*.cu csrc/posenc/*/*_cuda.cpp)
endif()

set(POSENC_WARNINGS -Wall -Wextra -Werror)

# Instruction sets with the flags and macros that ATen gives its own kernels. Off x86 the portable one serves alone.
set(POSENC_ISAS DEFAULT)
set(POSENC_FLAGS_DEFAULT)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND POSENC_ISAS AVX2 AVX512)
  set(POSENC_FLAGS_AVX2 -mavx2 -mfma -mf16c)
  set(POSENC_FLAGS_AVX512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
endif()

# The objects stand in the order DEFAULT, AVX2, AVX512 on the link line, DEFAULT first: of an inline function that several
# of them emit, the linker keeps the first, and that one must run anywhere.
set(POSENC_SIMD_OBJECTS)
foreach(isa IN LISTS POSENC_ISAS)
  add_library(posenc_${isa} OBJECT ${POSENC_SIMD_SOURCES})
  target_include_directories(posenc_${isa} PRIVATE csrc)
  target_link_libraries(posenc_${isa} PRIVATE posenc_torch::cpu)
  target_compile_definitions(posenc_${isa} PRIVATE CPU_CAPABILITY=${isa} CPU_CAPABILITY_${isa} POSENC_BUILDING)
  # Always -O3, in a debug build too: without inlining the objects would export hundreds of vector helpers. No contraction:
  # cos and sin of a position are the same numbers on every instruction set. See tests/check_symbols.py.
  # GCC's SLP pass forms fused multiply-add-subtract in spite of -ffp-contract=off, so that pass stays out (the loops are vector
  # code by hand). GCC takes the undefined operand inside its own AVX-512 intrinsics for a mistake of ours (its bug 105593).
  target_compile_options(posenc_${isa} PRIVATE ${POSENC_FLAGS_${isa}} -O3 -ffp-contract=off -fno-math-errno ${POSENC_WARNINGS}
    -Wno-unknown-pragmas -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi> $<$<CXX_COMPILER_ID:GNU>:-fno-tree-slp-vectorize> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  list(APPEND POSENC_SIMD_OBJECTS $<TARGET_OBJECTS:posenc_${isa}>)
endforeach()

add_library(posenc SHARED ${POSENC_SIMD_OBJECTS} ${POSENC_SOURCES} ${POSENC_CUDA_SOURCES})
add_library(posenc::posenc ALIAS posenc)
target_include_directories(posenc PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/csrc> $<INSTALL_INTERFACE:include>)
target_link_libraries(posenc PUBLIC posenc_torch::cpu)
# torch's headers need C++20 as ours do; a consumer that names no standard gets it.
target_compile_features(posenc PUBLIC cxx_std_20)
target_compile_definitions(posenc PRIVATE POSENC_BUILDING)
# torch's headers cost more than the rest of a file: parsed once a target, the whole builds in about half the time.
target_precompile_headers(posenc PRIVATE $<$<COMPILE_LANGUAGE:CXX>:<ATen/core/Tensor.h$<ANGLE-R>>
  $<$<COMPILE_LANGUAGE:CXX>:<torch/csrc/autograd/custom_function.h$<ANGLE-R>> $<$<COMPILE_LANGUAGE:CXX>:<torch/library.h$<ANGLE-R>>
  $<$<COMPILE_LANGUAGE:CXX>:<torch/nn/cloneable.h$<ANGLE-R>>)
target_compile_options(posenc PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${POSENC_WARNINGS}>)
# A program that only loads TorchScript names no symbol of posenc, and must still load it for its operators.
target_link_options(posenc INTERFACE -Wl,--no-as-needed)
if(POSENC_WITH_CUDA)
  # The runtime (libcudart) comes by way of libc10_cuda and is not named here: a wheel keeps it in a folder of its own, LibTorch's
  # archive under a name of its own, and a second runtime in the process would not see the first one's errors. So CMake adds none
  # (by default it would link a static one), and the C++ compiler links.
  set_target_properties(posenc PROPERTIES CUDA_RUNTIME_LIBRARY None LINKER_LANGUAGE CXX)
  target_link_libraries(posenc PRIVATE posenc_torch::torch_cuda posenc_torch::c10_cuda)
  set_source_files_properties(${POSENC_CUDA_SOURCES} PROPERTIES INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS}")
  # The one file that asks; the others' objects stay those of a build without CUDA.
  set_source_files_properties(csrc/posenc/core/dispatch.cpp PROPERTIES COMPILE_DEFINITIONS POSENC_WITH_CUDA)
  target_link_options(posenc PRIVATE -Wl,--no-as-needed)
  # Warnings of the host side are errors as in the rest; nvcc's own as well. --expt-relaxed-constexpr: constexpr functions of the
  # standard library count as device code.
  target_compile_options(posenc PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror,-Wno-unused-parameter
    -Werror=all-warnings --expt-relaxed-constexpr -lineinfo>)
endif()
