# A worker's device without queue, scheduler and HTTP: step times, or tokens of given prompts.
if(TARGET baton::cpu_backend)
  baton_program(baton-bench-worker SOURCES bench_worker.cpp bench_worker_driver.cpp bench_worker_dump.cpp
                bench_worker_generate.cpp
                LIBS baton::executors baton::cli11 baton::json
                     baton::spdlog)
endif()
