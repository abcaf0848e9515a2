// The types that a request's tools give their parameters: what families need that write arguments
// down as plain text, where only the tool's schema tells 5 from "5".
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace baton {

/// Of one parameter.
struct ParameterType {
  std::set<std::string> names;  // JSON Schema's names of types; empty: any
  bool trimmed = false;  // its strings are of a given form: whitespace around one is none of it

  /// Every value is a string, to the letter.
  bool verbatim() const { return !trimmed && names.size() == 1 && names.contains("string"); }
};

/// Function -> parameter -> type.
using ToolParameters =
    std::map<std::string, std::map<std::string, ParameterType, std::less<>>, std::less<>>;

/// Of a request's `tools`, JSON that was checked before. Types are collected through anyOf, oneOf,
/// allOf, enum, const and references to definitions of the same schema.
ToolParameters tool_parameters(std::string_view tools);

/// `text` as JSON of a type that `type` allows, a string where no other fits. "null" and Python's
/// None are null wherever something else than a string is allowed; booleans may be in capitals.
std::string value_json(std::string_view text, const ParameterType& type);

}  // namespace baton
