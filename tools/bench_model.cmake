# The forward pass alone. A benchmark may look inside workers/.
baton_library(random_model SOURCES random_model.cpp)
if(TARGET baton::cpu_backend)
  baton_program(baton-bench-model SOURCES bench_cpu_model.cpp
                LIBS baton::cpu_backend baton::random_model baton::cli11)
endif()
