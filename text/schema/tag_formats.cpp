#include <algorithm>

#include "text/schema/tag_nfa.h"

namespace baton::schema {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr int kWhitespace = 32;  // the only bound of whitespace there is

const Json* member(const Json& format, const char* name) {
  const auto it = format.find(name);
  return it == format.end() ? nullptr : &*it;
}

bool is_texts(const Json* value, bool empty_texts) {
  if (value == nullptr || !value->is_array()) return false;
  return std::all_of(value->begin(), value->end(), [&](const Json& one) {
    return one.is_string() && (empty_texts || !one.get_ref<const std::string&>().empty());
  });
}

bool is_flag(const Json* value) { return value == nullptr || value->is_boolean(); }

/// What a tag may consist of.
class Support {
 public:
  explicit Support(const SpecialIds& specials) : specials_(specials) {}

  bool format(const Json& of, int depth);
  bool found() const { return found_; }

 private:
  bool schema(const Json& of);
  bool token(const Json& of) const;
  bool tag(const Json& of, int depth);
  bool triggered(const Json& of, int depth);
  bool all(const Json* list, int depth);

  const SpecialIds& specials_;
  bool found_ = false;
};

bool Support::schema(const Json& of) {
  const Json* text = member(of, "json_schema");
  if (text == nullptr || !(text->is_object() || text->is_boolean())) return false;
  const Json* style = member(of, "style");
  const Json* excludes = member(of, "excludes");
  const Json* order = member(of, "any_order");
  const Json* blanks = member(of, "max_whitespace_cnt");
  found_ = true;
  return (style == nullptr || *style == "json") && (excludes == nullptr || excludes->empty()) &&
         (order == nullptr || *order == false) && (blanks == nullptr || *blanks == kWhitespace);
}

bool Support::token(const Json& of) const {
  const Json* token = member(of, "token");
  return of.value("type", Json()) == "token" && token != nullptr && token->is_string() &&
         specials_(token->get_ref<const std::string&>());
}

bool Support::all(const Json* list, int depth) {
  return list != nullptr && list->is_array() && !list->empty() &&
         std::all_of(list->begin(), list->end(),
                     [&](const Json& one) { return format(one, depth + 1); });
}

bool Support::tag(const Json& of, int depth) {
  if (!of.is_object()) return false;
  const Json* begin = member(of, "begin");
  const Json* content = member(of, "content");
  const Json* end = member(of, "end");
  if (begin == nullptr || content == nullptr || end == nullptr) return false;
  const bool begins = begin->is_string() || (begin->is_object() && token(*begin));
  const bool ends = end->is_string() || (is_texts(end, true) && !end->empty()) ||
                    (end->is_object() && token(*end));
  return begins && ends && format(*content, depth + 1);
}

/// Whether a tag begins with the trigger.
bool begins_with(const Json& tag, const std::string& trigger, bool token) {
  const Json& begin = tag["begin"];
  if (begin.is_object()) return token && begin["token"] == trigger;
  return !token && begin.get_ref<const std::string&>().starts_with(trigger);
}

/// Each tag has one trigger, and each trigger a tag.
bool Support::triggered(const Json& of, int depth) {
  const Json* tags = member(of, "tags");
  const Json* excludes = member(of, "excludes");
  const Json* tokens = member(of, "exclude_tokens");
  if (tags == nullptr || !tags->is_array() || tags->empty() ||
      !is_flag(member(of, "at_least_one")) || !is_flag(member(of, "stop_after_first")) ||
      (excludes != nullptr && !is_texts(excludes, false)) ||
      (tokens != nullptr && !tokens->empty()) ||
      !std::all_of(tags->begin(), tags->end(), [&](const Json& one) { return tag(one, depth); })) {
    return false;
  }
  std::vector<std::size_t> fits(tags->size());
  for (const bool token : {false, true}) {
    const Json* list = member(of, token ? "trigger_tokens" : "triggers");
    if (list == nullptr) continue;
    if (!is_texts(list, false)) return false;
    for (const Json& trigger : *list) {
      const auto& text = trigger.get_ref<const std::string&>();
      bool any = false;
      for (std::size_t i = 0; i < tags->size(); ++i) {
        if (!begins_with((*tags)[i], text, token)) continue;
        ++fits[i];
        any = true;
      }
      if (!any || (token && !specials_(text))) return false;
    }
  }
  return std::all_of(fits.begin(), fits.end(), [](std::size_t count) { return count == 1; });
}

bool Support::format(const Json& of, int depth) {
  if (!of.is_object() || depth > kMaxDepth) return false;
  const Json type = of.value("type", Json());
  if (type == "const_string") {
    const Json* value = member(of, "value");
    return value != nullptr && value->is_string();
  }
  if (type == "json_schema") return schema(of);
  if (type == "token") return token(of);
  if (type == "any_text") {
    const Json* excludes = member(of, "excludes");
    return (excludes == nullptr || is_texts(excludes, false)) && !of.contains("max_tokens") &&
           !of.contains("max_chars");
  }
  if (type == "sequence" || type == "or") return all(member(of, "elements"), depth);
  if (type == "tag") return tag(of, depth);
  if (type == "triggered_tags" || type == "token_triggered_tags") return triggered(of, depth);
  if (type == "tags_with_separator") {
    const Json* tags = member(of, "tags");
    const Json* separator = member(of, "separator");
    return separator != nullptr && separator->is_string() && tags != nullptr && tags->is_array() &&
           !tags->empty() && is_flag(member(of, "at_least_one")) &&
           is_flag(member(of, "stop_after_first")) &&
           std::all_of(tags->begin(), tags->end(),
                       [&](const Json& one) { return tag(one, depth); });
  }
  if (type == "optional" || type == "plus" || type == "star") {
    const Json* content = member(of, "content");
    return content != nullptr && format(*content, depth + 1);
  }
  return false;
}

void find_schemas(const Json& of, const std::string& path, int depth,
                  std::vector<std::string>& out) {
  if (!of.is_structured() || depth > 2 * kMaxDepth) return;
  const Json type = of.is_object() ? of.value("type", Json()) : Json();
  if (of.contains("json_schema") && (type == "json_schema" || type == "qwen_xml_parameter")) {
    out.push_back(path + "/json_schema");
    return;
  }
  for (const auto& [name, inside] : of.items()) {
    find_schemas(inside, path + "/" + name, depth + 1, out);
  }
}

}  // namespace

bool supports_tag(const Json& tag, const SpecialIds& specials) {
  if (!tag.is_object()) return false;
  const Json* format = member(tag, "format");
  if (format == nullptr || tag.value("type", Json("structural_tag")) != "structural_tag") {
    return false;
  }
  Support support(specials);
  return support.format(*format, 0) && (support.found() || tag.value("held", Json()) == true);
}

std::vector<std::string> schemas_of_tag(const Json& tag) {
  std::vector<std::string> out;
  if (tag.is_object() && tag.contains("format")) find_schemas(tag["format"], "/format", 0, out);
  return out;
}

}  // namespace baton::schema
