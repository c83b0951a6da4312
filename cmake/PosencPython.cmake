# The Python module _C: pybind11 as torch bundles it, linked to libposenc and torch_python. No algorithm lives here.
if(NOT Python_Development.Module_FOUND)
  message(FATAL_ERROR "posenc: Python's headers are missing (package python3-dev, or -DPOSENC_BUILD_PYTHON=OFF for C++ alone)")
endif()
file(GLOB POSENC_PYTHON_SOURCES CONFIGURE_DEPENDS csrc/python/*.cpp)
Python_add_library(posenc_python MODULE WITH_SOABI ${POSENC_PYTHON_SOURCES})
set_target_properties(posenc_python PROPERTIES OUTPUT_NAME _C)
target_compile_definitions(posenc_python PRIVATE TORCH_EXTENSION_NAME=_C TORCH_API_INCLUDE_EXTENSION_H)
target_compile_options(posenc_python PRIVATE ${POSENC_WARNINGS})
target_link_libraries(posenc_python PRIVATE posenc posenc_torch::python)
target_precompile_headers(posenc_python PRIVATE <torch/extension.h> <torch/python.h>)

# What the import checks before it loads the binary.
configure_file(cmake/_build_info.py.in ${CMAKE_CURRENT_BINARY_DIR}/_build_info.py @ONLY)
