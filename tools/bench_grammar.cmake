# What grammars cost: compiling, and the mask of one token. On demand.
add_executable(baton-bench-grammar EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/bench_grammar.cpp)
target_link_libraries(baton-bench-grammar PRIVATE baton::flags baton::grammar baton::ipc_core)
set_target_properties(baton-bench-grammar PROPERTIES
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
