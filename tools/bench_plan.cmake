# baton-bench-plan: what one step costs the scheduler's thread.
baton_program(baton-bench-plan SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench_plan.cpp
              LIBS baton::scheduler_core baton::ipc_core)
