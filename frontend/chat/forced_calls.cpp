#include "frontend/chat/forced_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/chat/reply_marks.h"
#include "frontend/core/json_reader.h"

namespace baton {
namespace {

/// A header with NAME, then parameters.
CallText header_text(const CallFormat& format, const std::string& open, const std::string& close) {
  const bool minimax = format.name == "minimax_m2";
  return {open + std::string(format.name_begin), std::string(format.name_end) + "\n",
          "\n" + std::string(format.arguments_end) + close, minimax ? "minimax_xml" : "qwen_xml"};
}

/// {"type": "tag"} of each function that may be called.
OrderedJson tags_of(const ForcedChoice& choice, const ToolSchemas& schemas, const CallText& text) {
  OrderedJson tags = OrderedJson::array();
  for (const OrderedJson& tool : parse_ordered_json(choice.tools)) {
    const OrderedJson& function = tool["function"];
    const std::string name = function["name"];
    if (!choice.name.empty() && name != choice.name) continue;
    tags.push_back({{"type", "tag"},
                    {"begin", text.before_name + name + text.behind_name},
                    {"content", arguments_of(function, text.style, schemas)},
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

}  // namespace

namespace {

/// Marks that are special tokens cannot be drawn under a grammar: they are put in front of the
/// reply.
class Forced {
 public:
  Forced(const ForcedChoice& choice, const CallFormat& format, const Tokenizer& tokenizer,
         const ToolSchemas& schemas)
      : choice_(choice), format_(format), tokenizer_(tokenizer), schemas_(schemas) {}

  Result<ForcedReply> reply();

 private:
  bool special(std::string_view mark) const { return is_special(tokenizer_, mark); }
  bool several() const { return choice_.several && choice_.name.empty(); }
  ForcedReply tagged() const;
  ForcedReply listed() const;
  Result<ForcedReply> named() const;
  Result<ForcedReply> message() const;
  /// The name of the only function that may be called; empty: there are several.
  std::string only_name() const;
  OrderedJson arguments_of_only() const {
    return tags_of(choice_, schemas_, {"", "", ""}).front()["content"];
  }

  const ForcedChoice& choice_;
  const CallFormat& format_;
  const Tokenizer& tokenizer_;
  const ToolSchemas& schemas_;
};

std::string Forced::only_name() const {
  if (!choice_.name.empty()) return choice_.name;
  const OrderedJson tools = parse_ordered_json(choice_.tools);
  return tools.size() == 1 ? tools[0]["function"]["name"].get<std::string>() : "";
}

/// An object, a function or pairs between tags. Behind a special token the reply is one call, which
/// the end of the reply ends.
ForcedReply Forced::tagged() const {
  ForcedReply reply;
  const std::string mark(format_.opens[0]);
  const bool is_token = special(mark);
  if (is_token) reply.begun = mark;
  const bool pairs = format_.shape == CallShape::pairs;
  const std::string line = pairs ? "" : "\n";
  const std::string open = is_token ? line : mark + line;
  const std::string close = is_token ? line : line + std::string(format_.closes[0]);
  const CallText text = pairs                             ? CallText{open, "\n", close, "glm_xml"}
                        : format_.shape == CallShape::xml ? header_text(format_, open, close)
                                                          : object_text(format_, open, close);
  reply.grammar =
      structural_tag(calls_of(tags_of(choice_, schemas_, text), "\n", several() && !is_token));
  return reply;
}

/// A list of objects behind a mark.
ForcedReply Forced::listed() const {
  ForcedReply reply;
  const std::string mark(format_.opens[0]);
  const bool is_token = !mark.empty() && special(mark);
  if (is_token) reply.begun = mark;
  const std::string begin = (is_token ? "" : mark) + "[";
  const std::string_view close = format_.closes[0];
  const bool closed = !close.empty() && !special(close);
  OrderedJson list =
      calls_of(tags_of(choice_, schemas_, object_text(format_, "", "")), ", ", several());
  reply.grammar = structural_tag({{"type", "sequence"},
                                  {"elements",
                                   {const_string(begin), std::move(list),
                                    const_string("]" + (closed ? std::string(close) : ""))}}});
  return reply;
}

/// NAME, a mark, arguments.
Result<ForcedReply> Forced::named() const {
  const std::string section(format_.opens[0]), open(format_.open), begin(format_.name_begin),
      end(format_.name_end);
  const bool tokens = special(open) || special(end) || special(section);
  ForcedReply reply;
  if (!tokens) {
    const std::string closes = std::string(format_.closes[0] == "```" ? "\n```" : "") +
                               std::string(format_.closes[format_.closes[0] == "```" ? 1 : 0]);
    const CallText text{open + begin, end, closes};
    OrderedJson calls = calls_of(tags_of(choice_, schemas_, text), "\n", several());
    reply.grammar = structural_tag(
        {{"type", "sequence"}, {"elements", {const_string(section), std::move(calls)}}});
    return reply;
  }
  const std::string name = only_name();
  if (name.empty()) {
    return invalid("cannot force one of several functions in this model's format: name it");
  }
  const bool kimi = format_.name == "kimi_k2";
  reply.begun = section + open + begin + (kimi ? "functions." + name + ":0" : name) + end;
  reply.grammar = structural_tag(arguments_of_only());
  return reply;
}

/// A header of the harmony format holds special tokens, so it must be known.
Result<ForcedReply> Forced::message() const {
  const std::string name = only_name();
  if (name.empty()) {
    return invalid("cannot force one of several functions in this model's format: name it");
  }
  ForcedReply reply;
  reply.begun = std::string(kChannelMark) + "commentary to=" + std::string(kFunctions) + name +
                " " + std::string(kConstrainMark) + "json" + std::string(kMessageMark);
  reply.grammar = structural_tag(arguments_of_only());
  return reply;
}

Result<ForcedReply> Forced::reply() {
  switch (format_.shape) {
    case CallShape::object:
      if (format_.whole_reply()) {
        ForcedReply reply;
        reply.grammar =
            structural_tag(calls_of(tags_of(choice_, schemas_, object_text(format_, "", "")),
                                    std::string(format_.separator) + " ", several()));
        return reply;
      }
      return tagged();
    case CallShape::xml:
    case CallShape::pairs:
      return tagged();
    case CallShape::list:
    case CallShape::either:
      return listed();
    case CallShape::named:
      return named();
    case CallShape::channels:
      return message();
    case CallShape::pythonic:
      break;
  }
  return invalid("cannot be forced in the format " + std::string(format_.name));
}

}  // namespace

Result<ForcedReply> forced_calls(const ForcedChoice& choice, const ReplyGrammar& family,
                                 const Tokenizer& tokenizer, const ToolSchemas& schemas) {
  if (family.calls == nullptr) {
    return invalid("cannot be forced: how this model writes calls is not known");
  }
  return Forced(choice, *family.calls, tokenizer, schemas).reply();
}

}  // namespace baton
