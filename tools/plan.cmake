# Clusters in virtual time.
baton_library(step_times SOURCES ${CMAKE_CURRENT_LIST_DIR}/step_times.cpp LIBS baton::messages
              PRIVATE_LIBS baton::json)
baton_library(virtual_cluster SOURCES ${CMAKE_CURRENT_LIST_DIR}/virtual_cluster.cpp
              LIBS baton::scheduler_core baton::step_times)
