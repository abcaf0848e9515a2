#include "text/tokenizer/template_ids.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/tokenizer/spec_object.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr int kMaxProcessorDepth = 8;
constexpr std::size_t kMaxIds = 64;

/// Appends the ids that a template's special token stands for.
Status append_ids(const Json& special_tokens, const std::string& name, const std::string& where,
                  std::vector<Token>& ids) {
  const Status damaged = invalid(where + ": special_tokens has no ids for '" + name + "'");
  if (!special_tokens.is_object() || !special_tokens.contains(name)) return damaged;
  const Json& token = special_tokens[name];
  if (!token.is_object() || !token.contains("ids") || !token["ids"].is_array()) return damaged;
  for (const Json& id : token["ids"]) {
    const bool good = id.is_number_integer() && id.get<std::int64_t>() >= 0 &&
                      id.get<std::int64_t>() <= std::numeric_limits<Token>::max();
    if (!good || ids.size() >= kMaxIds) return damaged;
    ids.push_back(id.get<Token>());
  }
  return {};
}

/// {"Sequence": {"id": "A"}} or {"SpecialToken": {"id": NAME}}; empty when it is neither.
std::pair<std::string, std::string> read_item(const Json& item) {
  if (!item.is_object() || item.size() != 1) return {};
  const Json& inner = *item.begin();
  if (!inner.is_object() || !inner.contains("id") || !inner["id"].is_string()) return {};
  return {item.begin().key(), inner["id"].get<std::string>()};
}

Status read_single(const Json& list, const Json& special_tokens, const std::string& where,
                   TemplateIds& ids) {
  TemplateIds own;
  bool seen = false;
  for (const Json& item : list) {
    const auto [kind, name] = read_item(item);
    if (kind == "Sequence" && name == "A" && !seen) {
      seen = true;
    } else if (kind == "SpecialToken") {
      Status status = append_ids(special_tokens, name, where, seen ? own.behind : own.before);
      if (!status.ok()) return status;
    } else {
      return unsupported(where, "a template of anything but special tokens around one text");
    }
  }
  if (!seen) return unsupported(where, "a template without the text");
  ids.before.insert(ids.before.begin(), own.before.begin(), own.before.end());
  ids.behind.insert(ids.behind.end(), own.behind.begin(), own.behind.end());
  return {};
}

Status add(const Json& spec, const std::string& where, int depth, TemplateIds& ids) {
  if (depth > kMaxProcessorDepth) return unsupported(where, "so deep a Sequence");
  SpecObject object(spec, where);
  const std::string type = object.type();
  if (type == "Sequence") {
    const Json& list = object.list("processors");
    if (Status status = object.finish(); !status.ok()) return status;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Status status = add(list[i], where + "[" + std::to_string(i) + "]", depth + 1, ids);
      if (!status.ok()) return status;
    }
    return {};
  }
  if (type == "ByteLevel") {
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"})
      object.flag(key, true);
    return object.finish();
  }
  if (type != "TemplateProcessing") {
    return object.ok() ? unsupported(where, "the post-processor '" + type + "'") : object.finish();
  }
  const Json& single = object.list("single");
  object.value("pair");
  const Json& special_tokens = object.value("special_tokens");
  if (Status status = object.finish(); !status.ok()) return status;
  return read_single(single, special_tokens, where, ids);
}

}  // namespace

Result<TemplateIds> read_template(const Json& spec, const std::string& where) {
  TemplateIds ids;
  if (spec.is_null()) return ids;
  if (Status status = add(spec, where, 0, ids); !status.ok()) return status;
  return ids;
}

}  // namespace baton
