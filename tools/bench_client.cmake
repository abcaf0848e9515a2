# The load generator.
baton_library(sse_reader SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sse_reader.cpp)
baton_library(trace_file SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/trace_file.cpp PRIVATE_LIBS baton::json)
baton_program(baton-bench-client
  SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bench_client.cpp
  LIBS baton::sse_reader baton::trace_file baton::ipc_core baton::cli11 baton::json)
