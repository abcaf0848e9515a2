# libtorch out of the wheel that ./baton setup unpacked: baton::torch_cpu. The wheel's own CMake files
# demand a full CUDA set-up, so this is an imported target of our own: libtorch_cpu, libc10 and the
# two CUDA run-time libraries that libtorch_cpu.so names.
set(torch_dir ${BATON_DEPS}/torch/torch)
set(torch_cuda_lib ${BATON_DEPS}/torch/cuda/lib)
if(EXISTS ${torch_dir}/lib/libtorch_cpu.so AND EXISTS ${torch_cuda_lib}/libcudart.so.13)
  add_library(baton_torch_cpu INTERFACE)
  add_library(baton::torch_cpu ALIAS baton_torch_cpu)
  target_include_directories(baton_torch_cpu SYSTEM INTERFACE
    ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
  target_compile_definitions(baton_torch_cpu INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_link_libraries(baton_torch_cpu INTERFACE
    ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so Threads::Threads)
  target_link_options(baton_torch_cpu INTERFACE
    -Wl,-rpath,${torch_dir}/lib:${torch_cuda_lib} -Wl,-rpath-link,${torch_dir}/lib:${torch_cuda_lib}
    -Wl,--disable-new-dtags)
  set(BATON_HAVE_TORCH TRUE)
  message(STATUS "libtorch in ${torch_dir}")
else()
  set(BATON_HAVE_TORCH FALSE)
  message(WARNING "no libtorch under ${BATON_DEPS}/torch: the worker is not built. "
                  "`./baton setup` fetches it.")
endif()
