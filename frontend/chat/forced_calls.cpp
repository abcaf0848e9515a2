#include "frontend/chat/forced_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/chat/reply_marks.h"
#include "frontend/core/json_reader.h"

namespace baton {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_special(const Tokenizer& tokenizer, std::string_view mark) {
  std::size_t length = 0;
  return tokenizer.special_at(mark, &length) >= 0 && length == mark.size();
}

OrderedJson const_string(const std::string& text) {
  return {{"type", "const_string"}, {"value", text}};
}

constexpr std::string_view kJsonStyle = "json";

/// What a family writes around a call's name and arguments.
struct CallText {
  std::string before_name;
  std::string behind_name;
  std::string end;
  std::string_view style = kJsonStyle;  // of the arguments, as xgrammar names it
};

CallText json_call(const std::string& open, const std::string& key, const std::string& close) {
  return {open + "{\"name\": \"", "\", \"" + key + "\": ", "}" + close};
}

CallText xml_call(const std::string& open, const std::string& close) {
  return {open + std::string(kFunctionOpen), ">\n", "\n" + std::string(kFunctionClose) + close,
          "qwen_xml"};
}

/// {"type": "tag"} of each function that may be called.
OrderedJson tags_of(const ForcedChoice& choice, const CallText& text) {
  OrderedJson tags = OrderedJson::array();
  for (const OrderedJson& tool : parse_ordered_json(choice.tools)) {
    const OrderedJson& function = tool["function"];
    const std::string name = function["name"];
    if (!choice.name.empty() && name != choice.name) continue;
    const bool takes_any = function.contains("parameters") && function["parameters"].is_object();
    OrderedJson schema = takes_any ? function["parameters"] : OrderedJson{{"type", "object"}};
    if (schema.empty()) schema = {{"type", "object"}};
    // Raw text of any length under names of any kind would hardly end.
    if (text.style != kJsonStyle && !(takes_any && schema.contains("properties"))) {
      schema["additionalProperties"] = false;
    }
    tags.push_back(
        {{"type", "tag"},
         {"begin", text.before_name + name + text.behind_name},
         {"content",
          {{"type", "json_schema"}, {"style", text.style}, {"json_schema", std::move(schema)}}},
         {"end", text.end}});
  }
  return tags;
}

OrderedJson calls_of(OrderedJson tags, const std::string& separator, bool several) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", separator},
          {"at_least_one", true},
          {"stop_after_first", !several}};
}

std::string structural_tag(OrderedJson format) {
  return OrderedJson{{"type", "structural_tag"}, {"format", std::move(format)}}.dump();
}

}  // namespace

Result<ForcedReply> forced_calls(const ForcedChoice& choice, const ReplyGrammar& family,
                                 const Tokenizer& tokenizer) {
  const bool several = choice.several && choice.name.empty();
  ForcedReply reply;
  switch (family.calls) {
    case CallStyle::none:
      return invalid("cannot be forced: how this model writes calls is not known");
    case CallStyle::tagged:
    case CallStyle::xml: {
      // Behind a special token the reply is one call, which the end of the reply ends.
      const std::string mark(kCallOpen);
      const bool special = is_special(tokenizer, mark);
      if (special) reply.begun = mark;
      const std::string open = special ? "\n" : mark + "\n";
      const std::string close = special ? "\n" : "\n" + std::string(kCallClose);
      OrderedJson tags =
          tags_of(choice, family.calls == CallStyle::xml ? xml_call(open, close)
                                                         : json_call(open, "arguments", close));
      reply.grammar = structural_tag(calls_of(std::move(tags), "\n", several && !special));
      break;
    }
    case CallStyle::bracketed: {
      std::string begin = "[";
      if (is_special(tokenizer, kCallsMark)) {
        reply.begun = kCallsMark;
      } else {
        begin = std::string(kCallsMark) + begin;
      }
      OrderedJson list = calls_of(tags_of(choice, json_call("", "arguments", "")), ", ", several);
      reply.grammar =
          structural_tag({{"type", "sequence"},
                          {"elements", {const_string(begin), std::move(list), const_string("]")}}});
      break;
    }
    case CallStyle::channels: {
      // A header holds special tokens, which no grammar can ask for: it must be known.
      const OrderedJson tags = tags_of(choice, json_call("", "arguments", ""));
      if (tags.size() != 1) {
        return invalid("cannot force one of several functions in this model's format: name it");
      }
      const OrderedJson tools = parse_ordered_json(choice.tools);
      const auto named = std::find_if(tools.begin(), tools.end(), [&](const OrderedJson& tool) {
        return choice.name.empty() || tool["function"]["name"] == choice.name;
      });
      const std::string name = (*named)["function"]["name"];
      reply.begun = std::string(kChannelMark) + "commentary to=" + std::string(kFunctions) + name +
                    " " + std::string(kConstrainMark) + "json" + std::string(kMessageMark);
      reply.grammar = structural_tag(tags.front()["content"]);
      break;
    }
    case CallStyle::whole_json:
      reply.grammar =
          structural_tag(calls_of(tags_of(choice, json_call("", "parameters", "")), "; ", several));
      break;
  }
  return reply;
}

std::string behind_reasoning(GrammarKind kind, const std::string& grammar,
                             const std::string& think_close) {
  OrderedJson inside;
  switch (kind) {
    case GrammarKind::none:
      return {};
    case GrammarKind::json_schema:
      inside = {{"type", "json_schema"}, {"json_schema", parse_ordered_json(grammar)}};
      break;
    case GrammarKind::regex:
      inside = {{"type", "regex"}, {"pattern", grammar}};
      break;
    case GrammarKind::ebnf:
      inside = {{"type", "grammar"}, {"grammar", grammar}};
      break;
    case GrammarKind::structural_tag:
      inside = parse_ordered_json(grammar);
      if (!inside.is_object() || !inside.contains("format")) return grammar;  // refused as it is
      inside = OrderedJson(inside["format"]);
      break;
  }
  OrderedJson reasoning = {
      {"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", think_close}};
  OrderedJson gap = {{"type", "regex"}, {"pattern", "\\n{0,2}"}};
  return structural_tag({{"type", "sequence"},
                         {"elements", {std::move(reasoning), std::move(gap), std::move(inside)}}});
}

}  // namespace baton
