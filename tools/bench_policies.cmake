# baton-bench-policies: the scheduler's policies against each other, in virtual time.
baton_program(baton-bench-policies SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench_policies.cpp
              LIBS baton::virtual_cluster baton::cli11)
