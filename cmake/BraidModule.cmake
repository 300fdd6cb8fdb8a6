# braid_module(NAME [DEPS modules and libraries...] [SOURCES_EXCLUDE regex])
#
# One static library per folder of src/: every .cpp below src/NAME except tests and benchmarks. Beside it, one test
# program NAME_test from the folder's *_test.cpp files, registered with CTest a suite at a time, and one benchmark
# program per *_bench.cpp. A module links only what DEPS names, so that a forbidden dependency does not link.
include(GoogleTest)

add_library(braid_flags INTERFACE)
target_include_directories(braid_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_options(braid_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-unused-parameter;-Werror>")
target_link_libraries(braid_flags INTERFACE Threads::Threads)

# -ffp-contract=off everywhere: whether a*b+c is fused must be written down in the code, never chosen by the compiler,
# or two builds of one formula give different bits.
target_compile_options(braid_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>")
target_compile_options(braid_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;--Werror=all-warnings;-Xcompiler=-ffp-contract=off>")

# MPI's C++ bindings are gone in newer versions; its headers must not ask for them.
target_compile_definitions(braid_flags INTERFACE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)

function(braid_module NAME)
  cmake_parse_arguments(M "" "SOURCES_EXCLUDE" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${NAME}/*.cpp)
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cpp$")
  if(M_SOURCES_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${M_SOURCES_EXCLUDE}")
  endif()
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cpp$")

  if(NOT sources)  # nothing written yet
    add_library(braid_${NAME} INTERFACE)
    target_link_libraries(braid_${NAME} INTERFACE braid_flags ${M_DEPS})
    return()
  endif()
  add_library(braid_${NAME} STATIC ${sources})
  target_link_libraries(braid_${NAME} PUBLIC braid_flags ${M_DEPS})

  if(tests)
    add_executable(${NAME}_test ${tests})
    target_link_libraries(${NAME}_test PRIVATE braid_${NAME} GTest::gtest_main GTest::gmock rapidcheck rapidcheck_gtest)
    target_compile_definitions(${NAME}_test PRIVATE BRAID_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_precompile_headers(${NAME}_test PRIVATE <gtest/gtest.h> <vector> <string> <memory> <algorithm>)
    # One CTest entry per program: start-up of hundreds of processes would cost more than the tests.
    add_test(NAME ${NAME} COMMAND ${NAME}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${NAME} PROPERTIES TIMEOUT 600 LABELS fast)
  endif()
  foreach(bench ${benches})
    get_filename_component(bench_name ${bench} NAME_WE)
    add_executable(${bench_name} ${bench})
    target_link_libraries(${bench_name} PRIVATE braid_${NAME})
  endforeach()
endfunction()
