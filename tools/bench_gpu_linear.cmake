# The linear layers of a model's decode step alone, on a GPU.
if(BATON_CUDA)
  baton_program(baton-bench-gpu-linear SOURCES bench_gpu_linear.cpp
                LIBS baton::cuda_linear baton::cudart baton::cli11)
endif()
