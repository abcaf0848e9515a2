// The HTTP dialects that a front end can speak, as the configuration needs them: their names, and
// which paths each one owns. frontend/dialects/ holds what they do; a test compares the two.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

struct DialectPath {
  const char* method;   // GET or POST
  const char* path;     // ":name" stands for one part of a path
  bool shared = false;  // another dialect of the same port that has it answers it alike
};

struct DialectFacts {
  const char* name;
  const char* summary;  // whose API it is
  std::vector<DialectPath> paths;
};

/// In the order in which --help lists them.
const std::vector<DialectFacts>& dialect_facts();
/// nullptr: there is no such dialect.
const DialectFacts* find_dialect(std::string_view name);
/// "openai|lab|...", for the table of options.
const char* dialect_choices();

/// A path that two dialects of one port would both own.
struct DialectClash {
  std::string first, second;            // names of the dialects
  std::string first_path, second_path;  // they differ where one has a variable: /mii/:name
  std::string method;
};

/// The first clash among `names`; nothing if every path has one owner. Every name must be known.
std::optional<DialectClash> find_clash(const std::vector<std::string>& names);

}  // namespace baton
