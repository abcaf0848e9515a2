#include "frontend/chat/tool_parameters.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reply_marks.h"
#include "frontend/core/json_reader.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// Schemas that are looked at for one parameter: references may go round in circles.
constexpr int kMaxSchemas = 64;
/// Values that are looked at for all of them, a byte of the tools: many may refer to one large
/// enum.
constexpr std::size_t kMaxValuesPerByte = 4;
/// Longer names of types mean nothing, and longer references are not followed.
constexpr std::size_t kMaxTypeBytes = 16;
constexpr std::size_t kMaxReferenceBytes = 256;

/// JSON Schema's name. A number is an integer if it is written as one, however large.
const char* type_name(const Json& value, std::string_view text) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "boolean";
    case Json::value_t::object:
      return "object";
    case Json::value_t::array:
      return "array";
    case Json::value_t::string:
      return "string";
    default:
      return text.find_first_of(".eE") == text.npos ? "integer" : "number";
  }
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

/// "#/$defs/NAME" or "#/definitions/NAME" of the parameters' schema.
const Json* definition(const Json& root, const std::string& reference) {
  for (const char* group : {"$defs", "definitions"}) {
    const std::string path = "#/" + std::string(group) + "/";
    const Json* all = member(root, group);
    if (all != nullptr && reference.starts_with(path)) {
      return member(*all, reference.substr(path.size()).c_str());
    }
  }
  return nullptr;
}

struct Budget {
  int schemas = kMaxSchemas;  // of one parameter
  std::size_t values = 0;     // of all
  bool spend() { return values > 0 && values-- > 0; }
};

void add_types(const Json& schema, const Json& root, Budget& left, ParameterType& type) {
  if (!schema.is_object() || left.schemas-- <= 0) return;
  const Json* named = member(schema, "type");
  const auto add_name = [&](const Json& name) {
    if (!name.is_string()) return;
    const auto& text = name.get_ref<const std::string&>();
    if (text.size() <= kMaxTypeBytes) type.names.insert(text);
  };
  if (named != nullptr) add_name(*named);
  if (named != nullptr && named->is_array()) {
    for (const Json& one : *named) {
      if (!left.spend()) break;
      add_name(one);
    }
  }
  const auto add_value = [&](const Json& value) {
    if (named == nullptr)
      type.names.insert(type_name(value, value.is_number() ? value.dump() : ""));
    type.trimmed = true;
  };
  if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const Json& value : *values) {
      if (!left.spend()) break;
      add_value(value);
    }
  }
  if (const Json* value = member(schema, "const")) add_value(*value);
  if (schema.contains("pattern") || schema.contains("format")) type.trimmed = true;
  if (const Json* reference = member(schema, "$ref");
      reference != nullptr && reference->is_string() &&
      reference->get_ref<const std::string&>().size() <= kMaxReferenceBytes) {
    const Json* target = definition(root, reference->get<std::string>());
    if (target != nullptr) add_types(*target, root, left, type);
  }
  for (const char* group : {"anyOf", "oneOf", "allOf"}) {
    const Json* schemas = member(schema, group);
    if (schemas == nullptr || !schemas->is_array()) continue;
    for (const Json& one : *schemas) {
      if (left.schemas <= 0) break;
      add_types(one, root, left, type);
    }
  }
}

/// What `text` is, other than a string.
std::optional<std::string> other_than_string(std::string_view text, const ParameterType& type) {
  const auto allowed = [&](const char* name) {
    return type.names.empty() || type.names.contains(name);
  };
  if (type.names.size() == 1 && type.names.contains("string")) return std::nullopt;
  std::string small(text.substr(0, 8));
  std::transform(small.begin(), small.end(), small.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (small == "null" || small == "none") return "null";
  if (allowed("boolean") && (small == "true" || small == "false")) return small;
  // Inside of an object, so that it is checked as arguments are that a client sends back.
  const auto inside = parse_json_object("{\"v\":" + std::string(text) + "}");
  if (!inside.ok() || inside.value().size() != 1) return std::nullopt;
  const Json& value = inside.value().front();
  if (value.is_string()) return std::nullopt;
  const std::string_view name = type_name(value, text);
  if (!allowed(name.data()) && !(name == "integer" && allowed("number"))) return std::nullopt;
  return value.is_structured() ? copy_json(text, SpecialGuard()) : std::string(text);
}

}  // namespace

ToolParameters tool_parameters(std::string_view tools) {
  ToolParameters all;
  const Json parsed = Json::parse(tools.begin(), tools.end(), nullptr, false);
  Budget left{.values = kMaxValuesPerByte * tools.size()};
  if (!parsed.is_array()) return all;
  for (const Json& tool : parsed) {
    const Json* function = member(tool, "function");
    const Json* name = function == nullptr ? nullptr : member(*function, "name");
    if (name == nullptr || !name->is_string()) continue;
    auto& types = all[name->get<std::string>()];
    const Json* root = member(*function, "parameters");
    const Json* properties = root == nullptr ? nullptr : member(*root, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [parameter, schema] : properties->items()) {
      left.schemas = kMaxSchemas;
      add_types(schema, *root, left, types[parameter]);
    }
  }
  return all;
}

std::string value_json(std::string_view text, const ParameterType& type) {
  const std::string_view bare = trimmed_back(trimmed_front(text));
  if (auto json = other_than_string(bare, type)) return *json;
  return json_string(type.trimmed ? bare : text);
}

}  // namespace baton
