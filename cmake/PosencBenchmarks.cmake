# GoogleBenchmark programs, one a room. Build with -DPOSENC_BUILD_BENCHMARKS=ON and run build/.../bench_*.
find_package(benchmark REQUIRED)
file(GLOB POSENC_BENCHMARKS CONFIGURE_DEPENDS benchmarks/*_bench.cpp)
foreach(source IN LISTS POSENC_BENCHMARKS)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE posenc benchmark::benchmark benchmark::benchmark_main)
endforeach()
