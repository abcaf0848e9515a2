# Helpers that every folder's CMakeLists.txt uses, so that flags are written in one place.

# baton_interface_flags: warnings and sanitizers for all targets of this project, none for its libraries.
add_library(baton_flags INTERFACE)
add_library(baton::flags ALIAS baton_flags)
target_compile_features(baton_flags INTERFACE cxx_std_20)
# -Wpedantic: what nvcc hands to g++ is full of GCC's own line directives, each of them a warning.
target_compile_options(baton_flags INTERFACE -Wall -Wextra $<$<COMPILE_LANGUAGE:CXX>:-Wpedantic> -Wshadow -Wnon-virtual-dtor
                                             -Woverloaded-virtual -fno-math-errno)
# Of the compiler that CI has: newer ones warn about more, which must not keep anybody from building.
if(BATON_WERROR AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # nvcc's option of that name takes a value.
  target_compile_options(baton_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
target_include_directories(baton_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)

if(BATON_SANITIZE)
  if(NOT BATON_SANITIZE MATCHES "^(address|thread)$")
    message(FATAL_ERROR "BATON_SANITIZE is '${BATON_SANITIZE}'; it may be address, thread or empty")
  endif()
  set(sanitizers ${BATON_SANITIZE})
  if(BATON_SANITIZE STREQUAL "address")
    # Undefined behaviour ends the program, too. vptr needs type information of libraries that hide it.
    set(sanitizers address,undefined)
    # Its checks make g++ see uses of uninitialised memory in library headers that are none.
    target_compile_options(baton_flags INTERFACE -fno-sanitize-recover=undefined -fno-sanitize=vptr
                                                 -Wno-maybe-uninitialized)
  endif()
  target_compile_options(baton_flags INTERFACE -fsanitize=${sanitizers} -fno-omit-frame-pointer)
  target_link_options(baton_flags INTERFACE -fsanitize=${sanitizers})
  if(BATON_SANITIZE STREQUAL "thread")
    # Fences are not modelled by ThreadSanitizer; g++ warns about the ones inside library headers.
    target_compile_options(baton_flags INTERFACE -Wno-tsan)
  endif()
endif()

if(BATON_COVERAGE)
  target_compile_options(baton_flags INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(baton_flags INTERFACE --coverage)
endif()

# Files of a target that compile as one, where they do: most of a file's time are headers (JSON's above all) and what
# it makes of their templates, which such files share. Some 2 GB of memory for the largest.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)

# baton_library(name [TOGETHER] SOURCES a.cpp ... [LIBS ...] [PRIVATE_LIBS ...])
# A static library (an interface one when there are no sources), aliased as baton::name. Its target
# is called baton_<name>, so that folder names and target names cannot collide.
# [TOGETHER]: its files are compiled as one in every tree, for the sake of the first build.
function(baton_library name)
  cmake_parse_arguments(arg "TOGETHER" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "baton_library(${name}): say SOURCES, LIBS or PRIVATE_LIBS before "
                        "'${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(arg_SOURCES)
    add_library(baton_${name} STATIC ${arg_SOURCES})
    target_link_libraries(baton_${name} PUBLIC baton::flags ${arg_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
    if(arg_TOGETHER AND NOT CMAKE_CXX_CLANG_TIDY)
      set_target_properties(baton_${name} PROPERTIES UNITY_BUILD ON)
    endif()
  else()
    add_library(baton_${name} INTERFACE)
    target_link_libraries(baton_${name} INTERFACE baton::flags ${arg_LIBS})
  endif()
  add_library(baton::${name} ALIAS baton_${name})
endfunction()

# baton_program(name SOURCES ... LIBS ...): an executable in <build>/bin.
# [SERVE]: part of what `./baton serve` builds first (see the target `baton-serve`). [TOOL]: of what it builds once
# it serves (`baton-tools`).
function(baton_program name)
  cmake_parse_arguments(arg "SERVE;TOOL" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE baton::flags ${arg_LIBS})
  # Installed, libraries that a system need not have lie in lib beside bin. As RPATH, not RUNPATH, which would
  # not hold for what those libraries need.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin
                                           BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
  if(arg_SERVE)
    add_dependencies(baton-serve ${name})
  endif()
  if(arg_TOOL)
    add_dependencies(baton-tools ${name})
  endif()
endfunction()

# What runs at a start, for operators or once a request, and loops that only call what is compiled elsewhere: less of it is
# optimised, for which such files take a quarter less of a first build.
function(baton_runs_seldom)
  foreach(name IN LISTS ARGN)
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  endforeach()
endfunction()

# libFuzzer sees which branches an input takes; the sanitizers see what is wrong with it.
if(BATON_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "BATON_FUZZ needs clang: cmake --preset fuzz")
  endif()
  set(fuzz_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                 -fno-omit-frame-pointer)
  target_compile_options(baton_flags INTERFACE ${fuzz_flags})
  target_link_options(baton_flags INTERFACE -fsanitize=address,undefined)
endif()

# What the sanitizer runs of `./baton test` build: unit tests, and programs that a test marked
# SANITIZED starts.
add_custom_target(baton-sanitized)

# baton_test(name SOURCES ... LIBS ... [LABEL unit|cpu_torch|e2e] [TIMEOUT seconds]
#            [ENVIRONMENT A=1 ...] [ARGS ...] [NO_MAIN] [NOT_SANITIZED] [ONE_THREAD] [OWN_DATA])
# A GoogleTest program, one ctest entry a program. gtest's main is linked unless NO_MAIN is given.
# ONE_THREAD: neither it nor what it tests starts another: nothing to see for ThreadSanitizer.
# OWN_DATA: no second thread, and no bytes of clients, files or other processes: in no sanitizer tree. The simulation
# runs the same cores under AddressSanitizer.
# NOT_SANITIZED: left out of the sanitizer trees (arithmetic that only takes long there).
function(baton_test name)
  cmake_parse_arguments(arg "NO_MAIN;NOT_SANITIZED;ONE_THREAD;OWN_DATA" "LABEL;TIMEOUT" "SOURCES;LIBS;ENVIRONMENT;ARGS" ${ARGN})
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "baton_test(${name}): no SOURCES")
  endif()
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  if(NOT arg_LABEL MATCHES "^(unit|cpu_torch|e2e)$")
    message(FATAL_ERROR "baton_test(${name}): LABEL is '${arg_LABEL}', not unit, cpu_torch or e2e")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(NOT BATON_TESTS OR ((BATON_SANITIZE OR BATON_COVERAGE) AND arg_NOT_SANITIZED)
     OR (BATON_SANITIZE AND arg_OWN_DATA) OR (BATON_SANITIZE STREQUAL "thread" AND arg_ONE_THREAD))
    return()
  endif()
  if(arg_NO_MAIN)
    set(main baton::gtest)
  else()
    set(main baton::gtest_main)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE baton::flags ${arg_LIBS} ${main})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(arg_LABEL STREQUAL "unit")
    add_dependencies(baton-sanitized ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  baton_test_properties(${name} LABEL ${arg_LABEL} TIMEOUT ${arg_TIMEOUT}
                        ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

# baton_script_test(name COMMAND python3 tests/e2e/test_x.py [LABEL ..] [TIMEOUT ..] [ENVIRONMENT ..]
#                   [SERIAL] [NIGHTLY] [SANITIZED program ...])
# A test that is a script; run in the source folder with BATON_BUILD_DIR set. SERIAL: never beside
# another test (it measures, or it fills both cores). NIGHTLY: run by `./baton test --all` alone. SANITIZED: it also runs in the sanitizer trees
# (where it is skipped otherwise), which then build the named programs.
function(baton_script_test name)
  cmake_parse_arguments(arg "SERIAL;NIGHTLY" "LABEL;TIMEOUT" "COMMAND;ENVIRONMENT;SANITIZED" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL e2e)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT BATON_TESTS OR (BATON_SANITIZE AND NOT arg_SANITIZED))
    return()
  endif()
  if(arg_SANITIZED)
    add_dependencies(baton-sanitized ${arg_SANITIZED})
    list(APPEND arg_LABEL sanitized)
  endif()
  if(arg_NIGHTLY)
    list(APPEND arg_LABEL nightly)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  baton_test_properties(${name} LABEL ${arg_LABEL} TIMEOUT ${arg_TIMEOUT}
                        ENVIRONMENT ${arg_ENVIRONMENT})
  if(arg_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(baton_test_properties name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LABEL;ENVIRONMENT" ${ARGN})
  set(env "BATON_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "BATON_BUILD_DIR=${PROJECT_BINARY_DIR}"
          "BATON_DEPS=${BATON_DEPS}" "OMP_WAIT_POLICY=passive" ${arg_ENVIRONMENT})
  if(BATON_COVERAGE)
    list(APPEND env BATON_TEST_PATIENCE=5 BATON_SIM_SEEDS=200)
  endif()
  if(BATON_SANITIZE)
    # A sanitizer costs a factor of 5 to 20: real processes get more time, the simulation (ten
    # thousand seeds in the ordinary tree) fewer seeds.
    list(APPEND env BATON_TEST_PATIENCE=5)
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  if(BATON_SANITIZE STREQUAL "thread")
    list(APPEND env BATON_SIM_SEEDS=50 "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
  elseif(BATON_SANITIZE STREQUAL "address")
    list(APPEND env BATON_SIM_SEEDS=200
                    "UBSAN_OPTIONS=print_stacktrace=1"
                    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
                    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT}
                                          ENVIRONMENT "${env}")
endfunction()
