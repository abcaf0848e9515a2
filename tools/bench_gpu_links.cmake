# Which GPUs can read each other's memory, and how fast.
if(BATON_CUDA)
  baton_program(baton-bench-gpu-links SOURCES bench_gpu_links.cpp
                LIBS baton::cuda_rowwise baton::cuda_device baton::cudart baton::cli11 baton::json)
endif()
