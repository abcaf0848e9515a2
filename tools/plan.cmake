# Clusters in virtual time.
baton_library(step_times SOURCES ${CMAKE_CURRENT_LIST_DIR}/step_times.cpp LIBS baton::messages
              PRIVATE_LIBS baton::json)
baton_library(virtual_cluster SOURCES ${CMAKE_CURRENT_LIST_DIR}/virtual_cluster.cpp
              LIBS baton::scheduler_core baton::step_times)
baton_library(plan_search SOURCES ${CMAKE_CURRENT_LIST_DIR}/plan_search.cpp
              LIBS baton::virtual_cluster baton::trace_file)
baton_program(baton-plan SOURCES ${CMAKE_CURRENT_LIST_DIR}/plan.cpp
              LIBS baton::plan_search baton::configs baton::ipc_core baton::cli11 baton::json)
