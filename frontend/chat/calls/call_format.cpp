#include "frontend/chat/calls/call_format.h"

#include <algorithm>
#include <utility>

#include "frontend/chat/reply_marks.h"

namespace baton {
namespace {

// Each format as its family's published chat template writes it (2026-11).
constexpr CallFormat kFormats[] = {
    // Hermes, Qwen 2.5 and 3, SmolLM3, EXAONE 4, Granite 4, ERNIE 4.5.
    {.name = "hermes", .shape = CallShape::object, .opens = {kCallOpen}, .closes = {kCallClose}},
    {.name = "mistral",
     .shape = CallShape::either,
     .opens = {kCallsMark},
     .name_end = kArgumentsMark},
    {.name = "llama3_json",
     .shape = CallShape::object,
     .separator = ";",
     .arguments_key = "parameters"},
    {.name = "qwen3_xml",
     .shape = CallShape::xml,
     .opens = {kCallOpen, kFunctionOpen},
     .name_begin = kFunctionOpen,
     .name_end = ">",
     .closes = {kCallClose},
     .key_begin = kParameterOpen,
     .key_end = ">",
     .value_end = kParameterClose,
     .arguments_end = kFunctionClose,
     .value_in_lines = true},
    {.name = "seed_oss",
     .shape = CallShape::xml,
     .opens = {"<seed:tool_call>"},
     .name_begin = kFunctionOpen,
     .name_end = ">",
     .closes = {"</seed:tool_call>"},
     .key_begin = kParameterOpen,
     .key_end = ">",
     .value_end = kParameterClose,
     .arguments_end = kFunctionClose,
     .value_in_lines = true},
    {.name = "minimax_m2",
     .shape = CallShape::xml,
     .opens = {"<minimax:tool_call>", "<invoke name=\""},
     .name_begin = "<invoke name=\"",
     .name_end = "\">",
     .closes = {"</minimax:tool_call>"},
     .key_begin = "<parameter name=\"",
     .key_end = "\">",
     .value_end = kParameterClose,
     .arguments_end = "</invoke>"},
    {.name = "glm45",
     .shape = CallShape::pairs,
     .opens = {kCallOpen},
     .closes = {kCallClose},
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>",
     .arguments_end = kCallClose},
    {.name = "deepseek_v3",
     .shape = CallShape::named,
     .opens = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
     .open = "<｜tool▁call▁begin｜>",
     .name_begin = "function<｜tool▁sep｜>",
     .name_end = "\n```json\n",
     .closes = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"}},
    {.name = "deepseek_v31",
     .shape = CallShape::named,
     .opens = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
     .open = "<｜tool▁call▁begin｜>",
     .name_end = "<｜tool▁sep｜>",
     .closes = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"}},
    {.name = "kimi_k2",
     .shape = CallShape::named,
     .opens = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
     .open = "<|tool_call_begin|>",
     .name_end = "<|tool_call_argument_begin|>",
     .closes = {"<|tool_call_end|>", "<|tool_calls_section_end|>"}},
    // Granite 3.
    {.name = "granite", .shape = CallShape::list, .opens = {"<|tool_call|>"}},
    {.name = "phi4_mini_json",
     .shape = CallShape::list,
     .opens = {"<|tool_call|>", "functools"},
     .closes = {"<|/tool_call|>"}},
    // Command R7B and A.
    {.name = "command_r",
     .shape = CallShape::list,
     .opens = {"<|START_ACTION|>"},
     .closes = {"<|END_ACTION|>"},
     .name_key = "tool_name",
     .arguments_key = "parameters"},
    {.name = "hunyuan_a13b",
     .shape = CallShape::list,
     .opens = {"<tool_calls>"},
     .closes = {"</tool_calls>"}},
    // xLAM: the reply is a list.
    {.name = "xlam", .shape = CallShape::list},
    // Llama 3.2 and others: the reply is a list of Python calls.
    {.name = "pythonic", .shape = CallShape::pythonic},
    {.name = "llama4_pythonic",
     .shape = CallShape::pythonic,
     .opens = {"<|python_start|>"},
     .closes = {"<|python_end|>"}},
    {.name = "openai", .shape = CallShape::channels},
};

constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"qwen3_coder", "qwen3_xml"},
    {"llama4_json", "llama3_json"},
    {"glm47", "glm45"},
    {"granite4", "hermes"},
    {"ernie45", "hermes"},
    {"longcat", "hermes"},
    {"olmo3", "pythonic"},
    {"smollm3", "hermes"},
    {"exaone4", "hermes"},
    {"harmony", "openai"},
    {"gpt_oss", "openai"},
    {"cohere_command3", "command_r"},
    {"minimax", "minimax_m2"},
    {"granite-20b-fc", "granite"},
    // SGLang's names.
    {"qwen25", "hermes"},
    {"llama3", "llama3_json"},
    {"deepseekv3", "deepseek_v3"},
    {"deepseekv31", "deepseek_v31"},
    {"gpt-oss", "openai"}};

/// The name of the format; empty: none that is known. The first that fits counts.
std::string_view shown_in(std::string_view text) {
  const auto has = [&](std::string_view part) { return holds(text, part); };
  if (has(kChannelMark) && has(kMessageMark)) return "openai";
  if (has("<｜tool▁call▁begin｜>")) return has("```json") ? "deepseek_v3" : "deepseek_v31";
  if (has("<|tool_call_begin|>")) return "kimi_k2";
  if (has("<minimax:tool_call>")) return "minimax_m2";
  if (has("<seed:tool_call>")) return "seed_oss";
  if (has("<|START_ACTION|>")) return "command_r";
  if (has("<tool_calls>") && !has("<tool_calls>\\n<tool_call>")) return "hunyuan_a13b";
  if (has(kCallOpen)) {
    if (has("<arg_key>")) return "glm45";
    if (!has(kFunctionOpen)) return "hermes";
    return has(kParameterOpen) ? "qwen3_xml" : "";
  }
  if (has("<|/tool_call|>") || has("functools[")) return "phi4_mini_json";
  if (has("<|tool_call|>")) return "granite";
  if (has(kCallsMark)) return "mistral";
  if (has("<|python_start|>")) return "llama4_pythonic";
  if (has("[func_name1(") || has("<function_calls>")) return "pythonic";
  if (has("ipython") && has("\"parameters\"")) return "llama3_json";
  return "";
}

}  // namespace

std::span<const CallFormat> call_formats() { return kFormats; }

const CallFormat* call_format(std::string_view name) {
  const auto* alias = std::find_if(std::begin(kAliases), std::end(kAliases),
                                   [&](const auto& pair) { return pair.first == name; });
  if (alias != std::end(kAliases)) name = alias->second;
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [&](const CallFormat& format) { return format.name == name; });
  return found == std::end(kFormats) ? nullptr : found;
}

std::string call_format_names() {
  std::string names;
  const auto add = [&](std::string_view name) {
    if (!names.empty()) names += ", ";
    names += name;
  };
  for (const CallFormat& format : kFormats) add(format.name);
  for (const auto& [alias, name] : kAliases) add(alias);
  return names;
}

const CallFormat* call_format_of_templates(std::string_view text) {
  return call_format(shown_in(text));
}

std::vector<std::string> call_marks(const CallFormat& format) {
  std::vector<std::string> marks;
  const auto add = [&](std::string_view mark) {
    if (mark.size() > 1 && std::find(marks.begin(), marks.end(), mark) == marks.end()) {
      marks.emplace_back(mark);
    }
  };
  for (const std::string_view mark : format.opens) add(mark);
  for (const std::string_view mark : format.closes) add(mark);
  for (const std::string_view mark :
       {format.open, format.name_end, format.key_begin, format.key_end, format.value_begin,
        format.value_end, format.arguments_end}) {
    add(mark);
  }
  if (format.name == "deepseek_v3") add("<｜tool▁sep｜>");
  if (format.shape == CallShape::either) add(kCallIdMark);
  if (format.name == "llama3_json" || format.shape == CallShape::pythonic) add(kPythonTag);
  return marks;
}

}  // namespace baton
