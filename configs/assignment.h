// One "key: value" of a YAML file or of the command line, before anybody looked at the tables.
// Private to configs/.
#pragma once

#include <string>
#include <vector>

#include "configs/config.h"
#include "ipc/status.h"

namespace baton {

struct Assignment {
  std::string section;  // "", "scheduler", "frontend", "listen", "worker", "workers" or (command
                        // line) "self"
  int entry = -1;       // of `workers` or `frontend.listen`
  std::string key;
  std::string text;
  bool quoted = false;
  std::string where;  // "FILE:LINE", or "command line"
  std::string label;  // how the user wrote the key: "scheduler.port", "--port"
  std::string base;   // folder that relative paths start from
};

inline Status error_at(const Assignment& a, const std::string& what) {
  return invalid(a.where + ": " + a.label + ": " + what);
}

struct EntryMark {
  std::string where;
};

struct YamlContent {
  std::vector<Assignment> assignments;
  std::vector<EntryMark> entries;  // of `workers`, in order
  std::vector<EntryMark> listen;   // of `frontend.listen`, in order
  bool says_workers = false;       // there is a list `workers`, be it empty
  EntryMark mark = {};             // of an entry of `models`: where it begins
  std::vector<YamlContent> models = {};  // what each entry says itself, in order
};

/// Shape only: sections, scalars, no key twice. yaml_reader.cpp is the only file with yaml-cpp.
Result<YamlContent> read_yaml(const std::string& text, const std::string& file);

struct CommandLine {
  bool help = false;
  bool version = false;
  std::string config_file;
  std::vector<Assignment> assignments;
  std::vector<EntryMark> listen;  // one for each --listen
  std::string entry;              // --for
};

/// command_line.cpp is the only file with CLI11.
Result<CommandLine> read_command_line(Program who, int argc, const char* const* argv);

/// The section whose options have short names on this program's command line; empty for a tool.
std::string own_section(Program who);

}  // namespace baton
