# GoogleTest: the system's package, else a pinned download, else a message that says what to install.
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(NOTICE "posenc: the tests need GoogleTest and no package of it is installed; downloading v1.15.2. Without a network install "
                 "libgtest-dev (Debian, Ubuntu), gtest-devel (Fedora) or googletest (conda, brew) instead.")
  include(FetchContent)
  FetchContent_Declare(googletest URL https://github.com/google/googletest/archive/refs/tags/v1.15.2.tar.gz
                       URL_HASH SHA256=7b42b4d6ed48810c5362c265a17faebe90dc2373c885e5216439d37927f02926)
  set(INSTALL_GTEST OFF)
  FetchContent_MakeAvailable(googletest)
endif()
include(GoogleTest)
file(GLOB POSENC_TEST_SOURCES CONFIGURE_DEPENDS tests/cpp/*/*.cpp)
if(POSENC_TEST_SOURCES)
  add_executable(posenc_tests ${POSENC_TEST_SOURCES})
  target_include_directories(posenc_tests PRIVATE tests/cpp)
  target_compile_options(posenc_tests PRIVATE -O1 -g0 -Wall -Wextra -Werror)
  target_link_libraries(posenc_tests PRIVATE posenc GTest::gtest GTest::gtest_main)
  target_precompile_headers(posenc_tests PRIVATE <torch/torch.h> <gtest/gtest.h>)
  gtest_discover_tests(posenc_tests TEST_FILTER "-TorchScript.*" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
  # Layers that this checkout's Python package scripts and saves, for the tests that load them; without it these tests skip.
  set(POSENC_ARCHIVES ${CMAKE_CURRENT_BINARY_DIR}/torchscript)
  gtest_discover_tests(posenc_tests TEST_FILTER "TorchScript.*" TEST_LIST posenc_archive_tests DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 120 FIXTURES_REQUIRED archives ENVIRONMENT POSENC_TORCHSCRIPT_DIR=${POSENC_ARCHIVES})
  if(POSENC_BUILD_PYTHON AND POSENC_INPLACE)
    add_test(NAME save_archives
             COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp/torchscript/save_layers.py ${POSENC_ARCHIVES})
    set_tests_properties(save_archives PROPERTIES FIXTURES_SETUP archives TIMEOUT 120)
  endif()
endif()
