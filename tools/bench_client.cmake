# The load generator.
baton_library(sse_reader SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/sse_reader.cpp)
baton_program(baton-bench-client
  SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/bench_client.cpp
  LIBS baton::sse_reader baton::ipc_core baton::cli11)
