# The CUDA backend (BATON_CUDA): nvcc, cuBLASLt, and FlashInfer's headers that ./baton setup unpacked.
#   baton::cudart      the CUDA run-time library, linked statically: the host needs the driver alone
#   baton::cublaslt    cuBLASLt, a shared library of the CUDA toolkit (or of PyPI's nvidia-cublas)
#   baton::flashinfer  torch-free kernel templates
#   baton_cuda_library(name SOURCES ... LIBS ...)  as baton_library, for folders with .cu files
# Hopper is what is measured; Ampere compiles, but has not run yet.
set(BATON_CUDA_ARCHITECTURES "80;90a" CACHE STRING
    "GPU architectures to compile for; PTX of the last plain one is added for newer GPUs")
option(BATON_CUDA_QUICK "Compile CUDA files fast, hardly optimised: for a check that they compile" OFF)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "CUDA 13.0 or newer is needed, found ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
# CMake 3.25 knows neither nvcc's C++20 nor architectures with a letter: the flags are written out.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_ARCHITECTURES OFF)
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
set(BATON_GENCODE)
set(BATON_GENCODE_PTX)
foreach(arch IN LISTS BATON_CUDA_ARCHITECTURES)
  list(APPEND BATON_GENCODE_PTX "SHELL:-gencode arch=compute_${arch},code=compute_${arch}")
  list(APPEND BATON_GENCODE "SHELL:-gencode arch=compute_${arch},code=sm_${arch}")
  if(arch MATCHES "^[0-9]+$")
    set(ptx_arch ${arch})
  endif()
endforeach()
if(ptx_arch)
  list(APPEND BATON_GENCODE "SHELL:-gencode arch=compute_${ptx_arch},code=compute_${ptx_arch}")
endif()

set(BATON_CUDA_OPTIMIZE -O3 -lineinfo)
if(BATON_CUDA_QUICK)
  set(BATON_CUDA_OPTIMIZE -O0 --Ofast-compile=max)
endif()

find_package(CUDAToolkit 13.0 REQUIRED)
add_library(baton_dep_cudart INTERFACE)
add_library(baton::cudart ALIAS baton_dep_cudart)
target_link_libraries(baton_dep_cudart INTERFACE CUDA::cudart_static)
target_include_directories(baton_dep_cudart SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
add_library(baton_dep_cublaslt INTERFACE)
add_library(baton::cublaslt ALIAS baton_dep_cublaslt)
target_link_libraries(baton_dep_cublaslt INTERFACE CUDA::cublasLt baton_dep_cudart)

set(flashinfer_dir ${BATON_DEPS}/flashinfer)
if(NOT EXISTS ${flashinfer_dir}/include/flashinfer/page.cuh)
  message(FATAL_ERROR "no FlashInfer headers under ${flashinfer_dir}: `./baton setup --cuda` fetches them")
endif()
# The order matters: CUDA 13.0's own CCCL is too old for these headers.
add_library(baton_dep_flashinfer INTERFACE)
add_library(baton::flashinfer ALIAS baton_dep_flashinfer)
target_include_directories(baton_dep_flashinfer BEFORE INTERFACE
  ${flashinfer_dir}/include ${flashinfer_dir}/cccl/libcudacxx/include ${flashinfer_dir}/cccl/cub
  ${flashinfer_dir}/cccl/thrust ${flashinfer_dir}/cutlass/include
  ${flashinfer_dir}/cutlass/tools/util/include)
target_compile_definitions(baton_dep_flashinfer INTERFACE FLASHINFER_ENABLE_BF16 FLASHINFER_ENABLE_F16)

# What must go on compiling and linking on machines without a GPU.
add_custom_target(baton-cuda)

function(baton_cuda_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(baton_${name} STATIC ${arg_SOURCES})
  add_library(baton::${name} ALIAS baton_${name})
  target_include_directories(baton_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
  target_link_libraries(baton_${name} PUBLIC baton::cudart ${arg_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
  # Kernels of different files have the same local names; CMake 3.31 would compile .cu files as one, too.
  # What ptxas makes of FlashInfer's templates takes longer than all the rest, and changes with FlashInfer's version alone.
  if(BATON_CUDA_QUICK AND "baton::flashinfer" IN_LIST arg_PRIVATE_LIBS)
    set(gencode ${BATON_GENCODE_PTX})
  else()
    set(gencode ${BATON_GENCODE})
  endif()
  set_target_properties(baton_${name} PROPERTIES CUDA_SEPARABLE_COMPILATION OFF UNITY_BUILD OFF)
  target_compile_options(baton_${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>
    "$<$<COMPILE_LANGUAGE:CUDA>:${gencode};--expt-relaxed-constexpr;${BATON_CUDA_OPTIMIZE};-Xcompiler=-Wall;-diag-suppress=177>")
endfunction()

# baton_gpu_test(name SOURCES ... LIBS ...): a GoogleTest program that needs a GPU. It is always built, so
# that it cannot rot, and run by ctest (label gpu) where the configuring machine has an NVIDIA GPU.
function(baton_gpu_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS" ${ARGN})
  if(NOT BATON_TESTS)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE baton::flags ${arg_LIBS} baton::cudart baton::gtest_main)
  # Local names of its files are each other's.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu_tests UNITY_BUILD OFF)
  add_dependencies(baton-cuda ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(EXISTS /dev/nvidia0)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    baton_test_properties(${name} LABEL gpu TIMEOUT ${arg_TIMEOUT})
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
