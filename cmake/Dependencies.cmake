# Finds the Debian libraries, checks their minimum versions (written once, in debian-packages.txt) and
# gives each an imported target baton::<library>. What is missing is reported in one list with the
# command that installs it.
set(BATON_PACKAGE_LIST ${CMAKE_CURRENT_LIST_DIR}/debian-packages.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${BATON_PACKAGE_LIST})
file(STRINGS ${BATON_PACKAGE_LIST} lines REGEX "^[a-z]")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^([^ ]+) +([^ ]+) +([^ ]+)" _ "${line}")
  set(minimum_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()

set(missing_packages)
set(missing_lines)

# Notes that `package` gave `version` (empty: not found) and remembers what is too old.
function(baton_require package version)
  set(minimum ${minimum_${package}})
  if(NOT minimum)
    message(FATAL_ERROR "${package} is not listed in ${BATON_PACKAGE_LIST}")
  endif()
  if(version AND NOT version VERSION_LESS minimum)
    message(STATUS "${package} ${version} (at least ${minimum})")
    set(${package}_OK TRUE PARENT_SCOPE)
    return()
  endif()
  if(version)
    set(what "found ${version}, which is too old")
  else()
    set(what "not found")
  endif()
  set(missing_packages ${missing_packages} ${package} PARENT_SCOPE)
  set(missing_lines ${missing_lines} "  ${package}: ${what} (at least ${minimum} is needed)" PARENT_SCOPE)
endfunction()

# The three numbers of a version out of #define lines of an installed header.
function(baton_header_version out header)
  set(version)
  find_file(file_of_${out} ${header} PATHS /usr/include NO_CACHE)
  if(file_of_${out})
    file(READ ${file_of_${out}} text)
    foreach(name IN LISTS ARGN)
      string(REGEX MATCH "#[ ]*define[ ]+${name}[ ]+([0-9]+)" _ "${text}")
      list(APPEND version "${CMAKE_MATCH_1}")
    endforeach()
    string(REPLACE ";" "." version "${version}")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Headers of libraries are no place for our warnings: SYSTEM.
function(baton_interface name)
  cmake_parse_arguments(arg "" "" "LIBS;DEFINES;INCLUDES" ${ARGN})
  add_library(baton_dep_${name} INTERFACE)
  add_library(baton::${name} ALIAS baton_dep_${name})
  target_link_libraries(baton_dep_${name} INTERFACE ${arg_LIBS})
  target_compile_definitions(baton_dep_${name} INTERFACE ${arg_DEFINES})
  target_include_directories(baton_dep_${name} SYSTEM INTERFACE ${arg_INCLUDES})
endfunction()

find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)
baton_require(pkg-config "${PKG_CONFIG_VERSION_STRING}")
if(PKG_CONFIG_FOUND)
  pkg_check_modules(zmq_pc QUIET IMPORTED_TARGET libzmq)
  pkg_check_modules(pistache_pc QUIET IMPORTED_TARGET libpistache)
  # Only the version: Debian 13's sentencepiece.pc names protobuf-lite, which its package does not
  # bring, and both releases' files link the trainer, which is of no use here.
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --modversion sentencepiece
                  OUTPUT_VARIABLE sentencepiece_version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

baton_require(libzmq3-dev "${zmq_pc_VERSION}")
baton_header_version(cppzmq_version zmq.hpp CPPZMQ_VERSION_MAJOR CPPZMQ_VERSION_MINOR
                     CPPZMQ_VERSION_PATCH)
baton_require(cppzmq-dev "${cppzmq_version}")
if(zmq_pc_FOUND)
  baton_interface(zmq LIBS PkgConfig::zmq_pc)
endif()

baton_header_version(msgpack_version msgpack/version_master.hpp MSGPACK_VERSION_MAJOR
                     MSGPACK_VERSION_MINOR MSGPACK_VERSION_REVISION)
baton_require(libmsgpack-cxx-dev "${msgpack_version}")
baton_interface(msgpack DEFINES MSGPACK_NO_BOOST)

baton_require(libpistache-dev "${pistache_pc_VERSION}")
if(pistache_pc_FOUND)
  baton_interface(pistache LIBS PkgConfig::pistache_pc Threads::Threads)
endif()

baton_require(libsentencepiece-dev "${sentencepiece_version}")
baton_interface(sentencepiece LIBS sentencepiece)

find_package(nlohmann_json QUIET)
baton_require(nlohmann-json3-dev "${nlohmann_json_VERSION}")
if(nlohmann_json_FOUND)
  baton_interface(json LIBS nlohmann_json::nlohmann_json)
endif()

find_package(yaml-cpp QUIET)
baton_require(libyaml-cpp-dev "${yaml-cpp_VERSION}")
if(TARGET yaml-cpp::yaml-cpp)
  baton_interface(yaml LIBS yaml-cpp::yaml-cpp)
elseif(TARGET yaml-cpp)
  baton_interface(yaml LIBS yaml-cpp)
endif()

# The compiled library, not the header-only one: half the seconds a file.
find_package(spdlog QUIET)
baton_require(libspdlog-dev "${spdlog_VERSION}")
if(spdlog_FOUND)
  baton_interface(spdlog LIBS spdlog::spdlog)
endif()

find_package(CLI11 QUIET)
baton_require(libcli11-dev "${CLI11_VERSION}")
if(CLI11_FOUND)
  baton_interface(cli11 LIBS CLI11::CLI11)
endif()

find_file(boost_version_file boost/version.hpp NO_CACHE)
set(boost_version)
if(boost_version_file)
  file(STRINGS ${boost_version_file} line REGEX "^#define BOOST_VERSION ")
  string(REGEX REPLACE ".*BOOST_VERSION ([0-9]+).*" "\\1" number "${line}")
  math(EXPR major "${number} / 100000")
  math(EXPR minor "${number} / 100 % 1000")
  set(boost_version ${major}.${minor})
endif()
baton_require(libboost-dev "${boost_version}")
baton_interface(boost_interprocess LIBS Threads::Threads rt)

if(BATON_TESTS)
  find_package(GTest QUIET)
  baton_require(libgtest-dev "${GTest_VERSION}")
  if(GTest_FOUND)
    baton_interface(gtest LIBS GTest::gtest)
    baton_interface(gtest_main LIBS GTest::gtest_main)
  endif()
  find_package(Python3 3.11 QUIET COMPONENTS Interpreter)
  baton_require(python3 "${Python3_VERSION}")
endif()

if(missing_packages)
  string(REPLACE ";" "\n" missing_text "${missing_lines}")
  string(REPLACE ";" " " missing_names "${missing_packages}")
  message(FATAL_ERROR "Baton needs these Debian packages:\n${missing_text}\n"
                      "Install them:  apt-get install --no-install-recommends ${missing_names}\n"
                      "or let the launcher do it:  ./baton setup")
endif()
