# Tokenising on one thread; tools/bench_tokenizer.py runs it beside Hugging Face's library. On demand.
add_executable(baton-bench-tokenizer EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/bench_tokenizer.cpp)
target_link_libraries(baton-bench-tokenizer PRIVATE baton::flags baton::tokenizer baton::cli11)
set_target_properties(baton-bench-tokenizer PROPERTIES
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
