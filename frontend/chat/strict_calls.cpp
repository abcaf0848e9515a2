#include "frontend/chat/strict_calls.h"

#include <utility>
#include <vector>

#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reasoning_tag.h"
#include "frontend/chat/reply_marks.h"
#include "frontend/core/json_reader.h"

namespace baton {
namespace {

constexpr int kGap = 8;  // spaces and line ends in a row, at the places where models write some

OrderedJson gap() {
  std::vector<OrderedJson> elements(kGap,
                                    optional(any_of({const_string("\n"), const_string(" ")})));
  return sequence(std::move(elements));
}

class StrictCalls {
 public:
  StrictCalls(const ForcedChoice& choice, const ToolSchemas& schemas, const CallFormat& format,
              const Tokenizer& tokenizer)
      : functions_(parse_ordered_json(choice.tools)),
        schemas_(schemas),
        format_(format),
        tokenizer_(tokenizer) {}

  /// Free text with calls; null: they cannot be held to anything.
  OrderedJson format() const;

 private:
  OrderedJson text(std::string_view text) const { return marked_text(tokenizer_, text); }
  OrderedJson arguments(const OrderedJson& function) const {
    return is_strict(function) ? arguments_of(function, kJsonStyle, schemas_)
                               : any_arguments(function);
  }
  OrderedJson call(const OrderedJson& function, const CallText& around) const {
    return sequence(
        {text(around.before_name + function["name"].get<std::string>() + around.behind_name),
         arguments(function), text(around.end)});
  }
  /// A call of any of the functions.
  OrderedJson calls(const CallText& around) const;
  OrderedJson list() const;
  OrderedJson named_with_mark() const;
  OrderedJson named() const;
  /// What follows the opening mark `open`.
  OrderedJson behind(std::string_view open) const;

  const OrderedJson functions_;
  const ToolSchemas& schemas_;
  const CallFormat& format_;
  const Tokenizer& tokenizer_;
};

OrderedJson StrictCalls::calls(const CallText& around) const {
  std::vector<OrderedJson> all;
  for (const OrderedJson& tool : functions_) all.push_back(call(tool["function"], around));
  return any_of(std::move(all));
}

/// [CALL, CALL]
OrderedJson StrictCalls::list() const {
  CallText around = object_text(format_, "", "");
  OrderedJson begin = const_string("{");
  around.before_name.erase(0, 1);
  if (format_.name == "command_r") {
    OrderedJson id = {{"type", "json_schema"},
                      {"json_schema", {{"type", "string"}, {"pattern", "^[0-9]{1,4}$"}}}};
    begin = sequence({std::move(begin), optional(sequence({const_string("\"tool_call_id\": "),
                                                           std::move(id), const_string(", ")}))});
  }
  OrderedJson one = {{"type", "tag"},
                     {"begin", ""},
                     {"content", sequence({gap(), std::move(begin), calls(around), gap()})},
                     {"end", ""}};
  OrderedJson items = {{"type", "tags_with_separator"},
                       {"tags", OrderedJson::array({std::move(one)})},
                       {"separator", ","},
                       {"at_least_one", true}};
  return sequence(
      {gap(), const_string("["), std::move(items), const_string("]"), text(format_.closes[0])});
}

/// NAME[ARGS]{...}: Mistral. An id between them ([CALL_ID]) cannot be said: free text in front of
/// the arguments could hold others.
OrderedJson StrictCalls::named_with_mark() const {
  std::vector<OrderedJson> all;
  for (const OrderedJson& tool : functions_) {
    const OrderedJson& function = tool["function"];
    all.push_back(sequence({const_string(function["name"].get<std::string>()), text(kArgumentsMark),
                            arguments(function)}));
  }
  return any_of(std::move(all));
}

/// A name between marks, arguments, marks: DeepSeek and Kimi.
OrderedJson StrictCalls::named() const {
  std::vector<OrderedJson> all;
  const bool kimi = format_.name == "kimi_k2";
  const bool fenced = format_.closes[0] == "```";
  OrderedJson index = {{"type", "json_schema"},
                       {"json_schema", {{"type", "integer"}, {"minimum", 0}, {"maximum", 999}}}};
  for (const OrderedJson& tool : functions_) {
    const OrderedJson& function = tool["function"];
    const auto name = function["name"].get<std::string>();
    std::vector<OrderedJson> parts = {
        gap(), text(std::string(format_.name_begin) + (kimi ? "functions." : "") + name)};
    if (kimi) parts.push_back(sequence({const_string(":"), index}));
    parts.push_back(text(format_.name_end));
    parts.push_back(arguments(function));
    parts.push_back(
        text(fenced ? "\n```" + std::string(format_.closes[1]) : std::string(format_.closes[0])));
    all.push_back(sequence(std::move(parts)));
  }
  return any_of(std::move(all));
}

OrderedJson StrictCalls::behind(std::string_view open) const {
  switch (format_.shape) {
    case CallShape::object:
      return calls(object_text(format_, "\n", "\n" + std::string(format_.closes[0])));
    case CallShape::list:
      return list();
    case CallShape::either:
      return any_of({list(), named_with_mark()});
    case CallShape::named:
      return open == format_.open ? named() : sequence({gap(), text(format_.open), named()});
    default:
      return nullptr;
  }
}

OrderedJson StrictCalls::format() const {
  OrderedJson triggers = OrderedJson::array();
  OrderedJson tokens = OrderedJson::array();
  OrderedJson tags = OrderedJson::array();
  for (const std::string_view open : format_.opens) {
    if (open.empty()) continue;
    OrderedJson content = behind(open);
    if (content.is_null()) return nullptr;
    const bool special = is_special(tokenizer_, open);
    (special ? tokens : triggers).push_back(open);
    tags.push_back(
        {{"type", "tag"},
         {"begin", special ? OrderedJson{{"type", "token"}, {"token", open}} : OrderedJson(open)},
         {"content", std::move(content)},
         {"end", ""}});
  }
  if (tags.empty()) return nullptr;
  return {{"type", "triggered_tags"},
          {"triggers", std::move(triggers)},
          {"trigger_tokens", std::move(tokens)},
          {"any_special", true},
          {"tags", std::move(tags)}};
}

}  // namespace

std::optional<std::string> strict_calls(const ForcedChoice& choice, const ToolSchemas& schemas,
                                        const ReplyGrammar& family, const Tokenizer& tokenizer,
                                        const ReplyParser& parser) {
  if (family.calls == nullptr) return std::nullopt;
  OrderedJson format = StrictCalls(choice, schemas, *family.calls, tokenizer).format();
  if (format.is_null()) return std::nullopt;
  if (parser.reasoning() || parser.may_reason()) {
    format = sequence({reasoning_tag(family, tokenizer, parser.reasoning()), std::move(format)});
  }
  return structural_tag(std::move(format));
}

std::string strict_names(const ForcedChoice& choice) {
  std::string names;
  for (const OrderedJson& tool : parse_ordered_json(choice.tools)) {
    if (!is_strict(tool["function"])) continue;
    names += (names.empty() ? "" : ", ") + tool["function"]["name"].get<std::string>();
  }
  return names;
}

}  // namespace baton
