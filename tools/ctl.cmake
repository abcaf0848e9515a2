baton_program(baton-ctl SERVE SOURCES ctl.cpp LIBS baton::configs baton::cli11)
