# baton-sim: replays one seed of the simulation (tests/sim) in words.
if(BATON_TESTS)
  baton_program(baton-sim SOURCES ${CMAKE_CURRENT_LIST_DIR}/sim.cpp LIBS baton::sim)
endif()
