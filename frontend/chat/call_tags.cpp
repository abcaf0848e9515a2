#include "frontend/chat/call_tags.h"

#include <utility>

namespace baton {

OrderedJson const_string(std::string_view text) {
  return {{"type", "const_string"}, {"value", text}};
}

OrderedJson sequence(std::vector<OrderedJson> elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

OrderedJson any_of(std::vector<OrderedJson> elements) {
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

OrderedJson optional(OrderedJson content) {
  return {{"type", "optional"}, {"content", std::move(content)}};
}

std::string structural_tag(OrderedJson format) {
  return OrderedJson{{"type", "structural_tag"}, {"format", std::move(format)}}.dump();
}

CallText object_text(const CallFormat& format, const std::string& open, const std::string& close) {
  return {open + "{\"" + std::string(format.name_key) + "\": \"",
          "\", \"" + std::string(format.arguments_key) + "\": ", "}" + close};
}

bool is_special(const Tokenizer& tokenizer, std::string_view mark) {
  std::size_t length = 0;
  return tokenizer.special_at(mark, &length) >= 0 && length == mark.size();
}

OrderedJson marked_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<OrderedJson> elements;
  std::string plain;
  const auto end_plain = [&] {
    if (!plain.empty()) elements.push_back(const_string(plain));
    plain.clear();
  };
  while (!text.empty()) {
    std::size_t length = 0;
    if (tokenizer.special_at(text, &length) < 0) {
      plain += text.front();
      text.remove_prefix(1);
      continue;
    }
    end_plain();
    elements.push_back({{"type", "token"}, {"token", text.substr(0, length)}});
    text.remove_prefix(length);
  }
  end_plain();
  if (elements.empty()) return const_string("");
  return elements.size() == 1 ? std::move(elements[0]) : sequence(std::move(elements));
}

bool is_strict(const OrderedJson& function) {
  const auto strict = function.find("strict");
  return strict != function.end() && strict->is_boolean() && strict->get<bool>();
}

OrderedJson arguments_of(const OrderedJson& function, std::string_view style,
                         const ToolSchemas& schemas) {
  const bool strict = is_strict(function);
  const bool takes_any = function.contains("parameters") && function["parameters"].is_object();
  OrderedJson schema = takes_any ? function["parameters"] : OrderedJson::object();
  schema["type"] = "object";  // arguments are one, whatever the schema says
  // Raw text of any length under names of any kind would hardly end.
  if (style != kJsonStyle && !schema.contains("properties")) schema["additionalProperties"] = false;
  const bool open = schemas.asked.open.value_or(!strict && schemas.defaults.open);
  const bool refuse = schemas.asked.refuse.value_or(strict);
  return {{"type", "json_schema"},
          {"style", style},
          {"objects", open ? "open" : "closed"},
          {"unenforceable", refuse ? "refuse" : "report"},
          {"best_effort", !refuse},
          {"name", function["name"]},
          {"json_schema", std::move(schema)}};
}

OrderedJson any_arguments(const OrderedJson& function) {
  return {
      {"type", "json_schema"}, {"name", function["name"]}, {"json_schema", {{"type", "object"}}}};
}

}  // namespace baton
