baton_library(supervise SOURCES child_process.cpp supervise.cpp)
if(TARGET baton::configs)
baton_program(baton-supervisor SERVE SOURCES supervisor.cpp
              LIBS baton::supervise baton::configs baton::shm baton::cli11)
endif()
