#include "frontend/chat/reply_grammar.h"

#include <algorithm>
#include <array>
#include <utility>

#include "frontend/chat/reply_marks.h"

namespace baton {
namespace {

/// The marks around a reasoning, and the names of the vLLM parsers that look for them.
struct ReasoningMarks {
  std::string_view open;
  std::string_view close;
  std::array<std::string_view, 13> names;
};

// Templates are searched for the closing marks in this order.
constexpr ReasoningMarks kReasoningMarks[] = {
    {"<seed:think>", "</seed:think>", {"seed_oss"}},
    {"<|START_THINKING|>", "<|END_THINKING|>", {"cohere_command3"}},
    {"<think>",
     "</think>",
     {"deepseek_r1", "deepseek_v3", "qwen3", "glm45", "minimax_m2", "ernie45", "hunyuan_a13b",
      "olmo3", "step3", "kimi_k2", "granite", "holo2", "nemotron_v3"}},
    {"[THINK]", "[/THINK]", {"mistral"}},
};
constexpr std::string_view kChannelParser = "openai_gptoss";

const ReasoningMarks* marks_named(std::string_view name) {
  for (const ReasoningMarks& marks : kReasoningMarks) {
    if (std::find(marks.names.begin(), marks.names.end(), name) != marks.names.end()) return &marks;
  }
  return nullptr;
}

std::string reasoning_names() {
  std::string names(kChannelParser);
  for (const ReasoningMarks& marks : kReasoningMarks) {
    for (const std::string_view name : marks.names) {
      if (!name.empty()) names += ", " + std::string(name);
    }
  }
  return names;
}

void take_marks(const ReasoningMarks& marks, ReplyGrammar& grammar) {
  grammar.think_open = marks.open;
  grammar.think_close = marks.close;
}

}  // namespace

ReplyGrammar ReplyGrammar::of_templates(std::string_view text) {
  ReplyGrammar grammar;
  if (holds(text, kChannelMark) && holds(text, kMessageMark)) {
    grammar.channels = true;
    grammar.calls = call_format("openai");
    return grammar;
  }
  for (const ReasoningMarks& marks : kReasoningMarks) {
    if (!holds(text, marks.close)) continue;
    take_marks(marks, grammar);
    break;
  }
  grammar.calls = call_format_of_templates(text);
  return grammar;
}

Result<ReplyGrammar> ReplyGrammar::named(std::string_view text, const ParserNames& names) {
  ReplyGrammar grammar = of_templates(text);
  if (names.reasoning != "auto") {
    grammar.think_open.clear();
    grammar.think_close.clear();
    grammar.channels = names.reasoning == kChannelParser;
    const ReasoningMarks* marks = marks_named(names.reasoning);
    if (marks != nullptr) {
      take_marks(*marks, grammar);
    } else if (names.reasoning != "none" && !grammar.channels) {
      return invalid("frontend.reasoning_parser: '" + names.reasoning +
                     "' is not known; known are auto, none, " + reasoning_names());
    }
  }
  if (names.tool_calls != "auto") {
    grammar.calls = call_format(names.tool_calls);
    if (grammar.calls == nullptr && names.tool_calls != "none") {
      return invalid("frontend.tool_call_parser: '" + names.tool_calls +
                     "' is not known; known are auto, none, " + call_format_names());
    }
  }
  const bool calls_are_messages =
      grammar.calls != nullptr && grammar.calls->shape == CallShape::channels;
  if (calls_are_messages && !grammar.channels) {
    if (names.tool_calls == "auto") {
      grammar.calls = nullptr;  // without channels there are no such messages
    } else {
      grammar.channels = true;
    }
  }
  if (grammar.channels && grammar.calls != nullptr && !calls_are_messages) {
    return invalid("frontend.tool_call_parser: '" + names.tool_calls +
                   "' cannot be had with replies in channels (frontend.reasoning_parser)");
  }
  return grammar;
}

std::vector<std::string> ReplyGrammar::marks(bool with_calls) const {
  std::vector<std::string> marks;
  const auto add = [&](std::string_view mark) { marks.emplace_back(mark); };
  if (!think_open.empty()) {
    add(think_open);
    add(think_close);
  }
  if (channels) {
    for (const std::string_view mark : {kStartMark, kChannelMark, kConstrainMark, kMessageMark,
                                        kEndMark, kCallMark, kReturnMark}) {
      add(mark);
    }
  }
  if (with_calls && calls != nullptr) {
    for (std::string& mark : call_marks(*calls)) marks.push_back(std::move(mark));
  }
  return marks;
}

}  // namespace baton
