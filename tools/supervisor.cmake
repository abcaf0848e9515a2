baton_library(supervise SOURCES child_process.cpp supervise.cpp)
baton_program(baton-supervisor SERVE SOURCES supervisor.cpp LIBS baton::supervise baton::cli11)
