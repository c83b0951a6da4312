# LibTorch as imported targets: posenc_torch::cpu, posenc_torch::python, posenc_torch::cuda (where the wheel has it).
#
# Torch's own find_package(Torch) stops with an error when the wheel is a CUDA build and no toolkit is in sight, which is
# how PyPI's torch meets most machines. These few lines need the two include folders and the libraries alone. The file is
# installed beside posencConfig.cmake, so C++ projects that use posenc build on such machines too.
#
# Looked for in: TORCH_INSTALL_PREFIX (variable or environment), POSENC_TORCH_HINTS, then the interpreter's own torch.
include_guard(GLOBAL)

set(_posenc_torch_dirs ${TORCH_INSTALL_PREFIX} $ENV{TORCH_INSTALL_PREFIX} ${POSENC_TORCH_HINTS})
if(NOT _posenc_torch_dirs AND Python_EXECUTABLE)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _posenc_torch_dirs OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_path(POSENC_TORCH_DIR include/ATen/ATen.h PATHS ${_posenc_torch_dirs} NO_DEFAULT_PATH)
if(NOT POSENC_TORCH_DIR)
  message(FATAL_ERROR "posenc: no LibTorch found (looked in: '${_posenc_torch_dirs}'). Install torch for ${Python_EXECUTABLE}, "
                      "or set -DTORCH_INSTALL_PREFIX to the folder that holds torch's include/ and lib/.")
endif()

set(_posenc_version_header ${POSENC_TORCH_DIR}/include/torch/headeronly/version.h)
set(POSENC_TORCH_VERSION "")
foreach(_part MAJOR MINOR PATCH)
  file(STRINGS ${_posenc_version_header} _line REGEX "define TORCH_VERSION_${_part} ")
  string(REGEX REPLACE ".*TORCH_VERSION_${_part} ([0-9]+).*" "\\1" _line "${_line}")
  list(APPEND POSENC_TORCH_VERSION ${_line})
endforeach()
list(JOIN POSENC_TORCH_VERSION "." POSENC_TORCH_VERSION)
if(POSENC_TORCH_VERSION VERSION_LESS 2.11 OR POSENC_TORCH_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "posenc: supports torch >= 2.11 and < 2.16, found ${POSENC_TORCH_VERSION} in ${POSENC_TORCH_DIR}")
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" POSENC_TORCH_MINOR ${POSENC_TORCH_VERSION})
message(STATUS "posenc: torch ${POSENC_TORCH_VERSION} in ${POSENC_TORCH_DIR}")

function(_posenc_torch_library name)
  find_library(POSENC_TORCH_LIB_${name} ${name} PATHS ${POSENC_TORCH_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
  if(POSENC_TORCH_LIB_${name})
    add_library(posenc_torch::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(posenc_torch::${name} PROPERTIES IMPORTED_LOCATION ${POSENC_TORCH_LIB_${name}})
  endif()
endfunction()
foreach(_lib c10 torch_cpu torch torch_python c10_cuda torch_cuda)
  _posenc_torch_library(${_lib})
endforeach()

add_library(posenc_torch_cpu INTERFACE IMPORTED GLOBAL)
add_library(posenc_torch::cpu ALIAS posenc_torch_cpu)
target_include_directories(posenc_torch_cpu SYSTEM INTERFACE
  ${POSENC_TORCH_DIR}/include ${POSENC_TORCH_DIR}/include/torch/csrc/api/include)
# Every wheel since torch 2.7 has the C++11 ABI. ATen's headers parallelise by OpenMP only where the compiler is told so.
target_compile_definitions(posenc_torch_cpu INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_compile_options(posenc_torch_cpu INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
# The wheel's libraries find CUDA's by their own run path; the linker need not follow it.
target_link_options(posenc_torch_cpu INTERFACE -fopenmp -Wl,--allow-shlib-undefined)
target_link_libraries(posenc_torch_cpu INTERFACE posenc_torch::torch_cpu posenc_torch::c10)

if(TARGET posenc_torch::torch_python)
  add_library(posenc_torch_python INTERFACE IMPORTED GLOBAL)
  add_library(posenc_torch::python ALIAS posenc_torch_python)
  target_link_libraries(posenc_torch_python INTERFACE posenc_torch::torch_python posenc_torch::cpu)
endif()
