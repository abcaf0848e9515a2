#include "frontend/chat/reasoning_tag.h"

#include <utility>

#include "frontend/chat/ordered_json.h"
#include "frontend/core/json_reader.h"
#include "text/grammar/grammar_engine.h"

namespace baton {
namespace {

OrderedJson mark(const Tokenizer& tokenizer, const std::string& text) {
  if (is_special(tokenizer, text)) return {{"type", "token"}, {"token", text}};
  return text;
}

OrderedJson line_ends() {
  return sequence({optional(const_string("\n")), optional(const_string("\n"))});
}

}  // namespace

OrderedJson reasoning_tag(const ReplyGrammar& family, const Tokenizer& tokenizer, bool begun) {
  OrderedJson tag = {{"type", "tag"},
                     {"begin", begun ? OrderedJson("") : mark(tokenizer, family.think_open)},
                     {"content", {{"type", "any_text"}}},
                     {"end", mark(tokenizer, family.think_close)}};
  if (begun) return sequence({std::move(tag), line_ends()});
  return optional(sequence({line_ends(), std::move(tag), line_ends()}));
}

std::optional<std::string> behind_reasoning(GrammarKind kind, const std::string& grammar,
                                            const ReplyGrammar& family, const Tokenizer& tokenizer,
                                            bool begun) {
  const GrammarModes modes = modes_of(grammar);
  const bool special = is_special(tokenizer, family.think_close) ||
                       (!begun && is_special(tokenizer, family.think_open));
  if (special && kind != GrammarKind::json_schema) return std::nullopt;
  OrderedJson inside;
  switch (kind) {
    case GrammarKind::none:
      return std::nullopt;
    case GrammarKind::json_schema:
      // Not `name`: messages about it then say what they say without a reasoning.
      inside = {
          {"type", "json_schema"}, {"name", ""}, {"json_schema", parse_ordered_json(modes.text)}};
      break;
    case GrammarKind::regex:
      inside = {{"type", "regex"}, {"pattern", grammar}};
      break;
    case GrammarKind::ebnf:
      inside = {{"type", "grammar"}, {"grammar", grammar}};
      break;
    case GrammarKind::structural_tag:
      inside = parse_ordered_json(modes.text);
      if (!inside.is_object() || !inside.contains("format")) return grammar;  // refused as it is
      inside = OrderedJson(inside["format"]);
      break;
  }
  const bool has_modes = kind == GrammarKind::json_schema || kind == GrammarKind::structural_tag;
  return with_modes(
      has_modes && modes.refuse, has_modes && modes.open,
      structural_tag(sequence({reasoning_tag(family, tokenizer, begun), std::move(inside)})));
}

}  // namespace baton
