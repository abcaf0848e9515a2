# BATON_DEPS (cache or environment): what ./baton setup fetches lies there, perhaps shared by several
# clones; .deps otherwise.
if(NOT BATON_DEPS)
  if(DEFINED ENV{BATON_DEPS})
    set(deps $ENV{BATON_DEPS})
  else()
    set(deps ${PROJECT_SOURCE_DIR}/.deps)
  endif()
  set(BATON_DEPS ${deps} CACHE PATH "Folder with torch/, python/, gateway/ and xgrammar/")
endif()
