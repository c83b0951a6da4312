# Where the pieces go. A wheel holds everything in one folder, posenc/: _C, lib/libposenc.so, include/, share/cmake/posenc.
# `cmake --install` lays the same tree under its prefix; POSENC_INPLACE makes it in the checkout, for work on it.
include(CMakePackageConfigHelpers)
set(POSENC_CMAKE_DIR share/cmake/posenc)

set_target_properties(posenc PROPERTIES
  BUILD_RPATH "${POSENC_TORCH_DIR}/lib" INSTALL_RPATH "$ORIGIN/../../torch/lib;${POSENC_TORCH_DIR}/lib")
if(TARGET posenc_python)
  set_target_properties(posenc_python PROPERTIES
    BUILD_RPATH "$ORIGIN/lib;${POSENC_TORCH_DIR}/lib" INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
endif()

install(TARGETS posenc EXPORT posencTargets LIBRARY DESTINATION lib)
install(DIRECTORY csrc/posenc DESTINATION include FILES_MATCHING PATTERN "*.h")
install(EXPORT posencTargets NAMESPACE posenc:: DESTINATION ${POSENC_CMAKE_DIR})
configure_package_config_file(cmake/posencConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/posencConfig.cmake
                              INSTALL_DESTINATION ${POSENC_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/posencConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/posencConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/posencConfigVersion.cmake
              cmake/PosencTorch.cmake DESTINATION ${POSENC_CMAKE_DIR})
if(TARGET posenc_python)
  install(TARGETS posenc_python LIBRARY DESTINATION .)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build_info.py DESTINATION .)
endif()

# The same layout in a checkout, headers as a link, so that everything works there as it does from a wheel.
if(POSENC_INPLACE)
  set(package ${CMAKE_CURRENT_SOURCE_DIR}/python/posenc)
  set_target_properties(posenc PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${package}/lib)
  file(MAKE_DIRECTORY ${package}/include ${package}/${POSENC_CMAKE_DIR})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/csrc/posenc ${package}/include/posenc SYMBOLIC)
  export(EXPORT posencTargets NAMESPACE posenc:: FILE ${package}/${POSENC_CMAKE_DIR}/posencTargets.cmake)
  foreach(file IN ITEMS ${CMAKE_CURRENT_BINARY_DIR}/posencConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/posencConfigVersion.cmake
                        ${CMAKE_CURRENT_SOURCE_DIR}/cmake/PosencTorch.cmake)
    configure_file(${file} ${package}/${POSENC_CMAKE_DIR}/ COPYONLY)
  endforeach()
  if(TARGET posenc_python)
    set_target_properties(posenc_python PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${package})
    configure_file(${CMAKE_CURRENT_BINARY_DIR}/_build_info.py ${package}/_build_info.py COPYONLY)
  endif()
endif()
