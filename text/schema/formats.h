// The texts that a format of JSON Schema allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton::schema {

struct Format {
  std::string pattern;
  std::string excluded;       // a pattern; empty: none
  std::uint32_t longest = 0;  // characters; 0: any
};

/// Nothing: the name is an annotation, or, with `known`, one that cannot be enforced.
std::optional<Format> format_of(std::string_view name, bool* known);

}  // namespace baton::schema
