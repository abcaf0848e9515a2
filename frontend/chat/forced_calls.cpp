#include "frontend/chat/forced_calls.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/chat/reply_marks.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

bool is_special(const Tokenizer& tokenizer, std::string_view mark) {
  std::size_t length = 0;
  return tokenizer.special_at(mark, &length) >= 0 && length == mark.size();
}

Json const_string(const std::string& text) { return {{"type", "const_string"}, {"value", text}}; }

/// {"type": "tag"} of each function that may be called.
Json tags_of(const ForcedChoice& choice, const std::string& open, const std::string& key,
             const std::string& close) {
  Json tags = Json::array();
  for (const Json& tool : Json::parse(choice.tools)) {
    const Json& function = tool["function"];
    const std::string name = function["name"];
    if (!choice.name.empty() && name != choice.name) continue;
    const bool takes_any = function.contains("parameters") && function["parameters"].is_object();
    Json schema = takes_any ? function["parameters"] : Json{{"type", "object"}};
    if (schema.empty()) schema = {{"type", "object"}};
    tags.push_back({{"type", "tag"},
                    {"begin", open + "{\"name\": \"" + name + "\", \"" + key + "\": "},
                    {"content", {{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
                    {"end", "}" + close}});
  }
  return tags;
}

Json calls_of(Json tags, const std::string& separator, bool several) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", separator},
          {"at_least_one", true},
          {"stop_after_first", !several}};
}

std::string structural_tag(Json format) {
  return Json{{"type", "structural_tag"}, {"format", std::move(format)}}.dump();
}

}  // namespace

Result<ForcedReply> forced_calls(const ForcedChoice& choice, const ReplyGrammar& family,
                                 const Tokenizer& tokenizer) {
  const bool several = choice.several && choice.name.empty();
  ForcedReply reply;
  switch (family.calls) {
    case CallStyle::none:
      return invalid("cannot be forced: how this model writes calls is not known");
    case CallStyle::tagged: {
      // Behind a special token the reply is one call, which the end of the reply ends.
      const std::string open(kCallOpen);
      const bool special = is_special(tokenizer, open);
      if (special) reply.begun = open;
      Json tags = special
                      ? tags_of(choice, "\n", "arguments", "\n")
                      : tags_of(choice, open + "\n", "arguments", "\n" + std::string(kCallClose));
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
      Json list = calls_of(tags_of(choice, "", "arguments", ""), ", ", several);
      reply.grammar =
          structural_tag({{"type", "sequence"},
                          {"elements", {const_string(begin), std::move(list), const_string("]")}}});
      break;
    }
    case CallStyle::whole_json:
      reply.grammar =
          structural_tag(calls_of(tags_of(choice, "", "parameters", ""), "; ", several));
      break;
  }
  return reply;
}

std::string behind_reasoning(GrammarKind kind, const std::string& grammar,
                             const std::string& think_close) {
  Json inside;
  switch (kind) {
    case GrammarKind::none:
      return {};
    case GrammarKind::json_schema:
      inside = {{"type", "json_schema"}, {"json_schema", Json::parse(grammar)}};
      break;
    case GrammarKind::regex:
      inside = {{"type", "regex"}, {"pattern", grammar}};
      break;
    case GrammarKind::ebnf:
      inside = {{"type", "grammar"}, {"grammar", grammar}};
      break;
    case GrammarKind::structural_tag:
      inside = Json::parse(grammar, nullptr, false);
      if (!inside.is_object() || !inside.contains("format")) return grammar;  // refused as it is
      inside = Json(inside["format"]);
      break;
  }
  Json reasoning = {
      {"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", think_close}};
  Json gap = {{"type", "regex"}, {"pattern", "\\n{0,2}"}};
  return structural_tag({{"type", "sequence"},
                         {"elements", {std::move(reasoning), std::move(gap), std::move(inside)}}});
}

}  // namespace baton
