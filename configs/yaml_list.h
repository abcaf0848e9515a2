// A YAML file that is one named list of maps, such as a file of API keys: shape only. What the
// fields mean is its reader's matter.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ipc/status.h"

namespace baton {

struct YamlField {
  std::string key;
  std::string text;
  std::string where;  // "FILE:LINE"
};

struct YamlEntry {
  std::string where;
  std::vector<YamlField> fields;  // no key twice; each has one value
};

/// The file's one key must be `name`, and its value a list of at most `most` maps. Errors begin
/// with "FILE:LINE".
Result<std::vector<YamlEntry>> read_yaml_list(const std::string& text, const std::string& file,
                                              const std::string& name, std::size_t most);

}  // namespace baton
