// Strict functions where the model decides whether it calls, and grammars behind a reasoning.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/chat/reasoning_tag.h"
#include "frontend/chat/strict_calls.h"
#include "random_text.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::compiled;
using testing::demo_tokenizer;
using testing::random_text;

const char* const kTools = R"([
  {"type":"function","function":{"name":"weather","strict":true,"parameters":{"type":"object",
    "properties":{"city":{"enum":["Berlin","北京"]},"days":{"allOf":[{"type":"integer"},
    {"minimum":1,"maximum":9},{"not":{"multipleOf":2}}]}},"required":["city","days"]}}},
  {"type":"function","function":{"name":"time"}}])";

ReplyGrammar family(const char* format, bool reasons = false) {
  ReplyGrammar grammar;
  grammar.calls = call_format(format);
  if (reasons) {
    grammar.think_open = "<think>";
    grammar.think_close = "</think>";
  }
  return grammar;
}

ForcedChoice strict(const std::string& tools) {
  ForcedChoice choice;
  choice.tools = tools;
  choice.strict = true;
  return choice;
}
ForcedChoice choice() { return strict(kTools); }

/// The longest tokens that make up a text, to the byte.
std::vector<Token> tokens_of(std::string_view text) {
  static const auto known = [] {
    std::map<std::string, Token, std::less<>> ids;
    for (Token id = 0; id < static_cast<Token>(demo_tokenizer().piece_count()); ++id) {
      ids.emplace(demo_tokenizer().piece_text(id), id);
    }
    return ids;
  }();
  std::vector<Token> tokens;
  while (!text.empty()) {
    std::size_t length = std::min<std::size_t>(text.size(), 16);
    while (length > 1 && !known.contains(text.substr(0, length))) --length;
    tokens.push_back(known.at(std::string(text.substr(0, length))));
    text.remove_prefix(length);
  }
  return tokens;
}

std::string grammar_of(const ReplyGrammar& of, const char* prompt = "") {
  const ReplyParser parser(of, prompt, true, "seed");
  return strict_calls(choice(), {}, of, demo_tokenizer(), parser).value_or("");
}

bool takes(const CompiledGrammar& grammar, const std::string& text) {
  GrammarMatcher matcher(grammar, demo_tokenizer().eos_ids());
  for (const Token id : tokens_of(text)) {
    if (!matcher.accept(id)) return false;
  }
  return matcher.may_end();
}

std::vector<ToolCall> calls_in(const ReplyGrammar& of, const std::string& text) {
  ReplyParser parser(of, "", true, "seed");
  auto parts = parser.feed(text);
  for (ReplyPart& part : parser.finish()) parts.push_back(std::move(part));
  std::vector<ToolCall> calls;
  for (const ReplyPart& part : parts) {
    if (part.kind == ReplyPart::Kind::call) calls.push_back(part.call);
    if (part.kind == ReplyPart::Kind::arguments) calls.back().arguments += part.text;
  }
  return calls;
}

struct Written {
  const char* format;
  const char* call;   // with ARGUMENTS, as the family's template writes it
  const char* other;  // another function's
};
class StrictCalls : public ::testing::TestWithParam<Written> {};

std::string with(std::string text, const std::string& arguments) {
  return text.replace(text.find("ARGUMENTS"), 9, arguments);
}

TEST_P(StrictCalls, ArgumentsMatchOrAreNotWritten) {
  const Written& written = GetParam();
  const ReplyGrammar of = family(written.format);
  const CompiledGrammar grammar = compiled(GrammarKind::structural_tag, grammar_of(of));
  EXPECT_EQ(grammar.unenforced(), "");
  EXPECT_TRUE(takes(grammar, "No call is needed: {\"a\": <b>."));
  const std::string good = with(written.call, R"({"city": "Berlin", "days": 3})");
  EXPECT_TRUE(takes(grammar, good)) << good;
  EXPECT_TRUE(takes(grammar, "I look it up. " + good + "\n\nAnd " + good));
  ASSERT_EQ(calls_in(of, good).size(), 1U) << good;
  EXPECT_EQ(Json::parse(calls_in(of, good)[0].arguments)["days"], 3);
  for (const char* bad :
       {R"({"city": "Berlin"})", R"({"city": "Rom", "days": 3})",
        R"({"city": "Berlin", "days": 4})", R"({"city": "Berlin", "days": 3, "x": 1})",
        R"({"city": "Berlin", "days": "3"})", "{}", "5"}) {
    EXPECT_FALSE(takes(grammar, with(written.call, bad))) << bad;
  }
  // What is not strict takes any object.
  EXPECT_TRUE(takes(grammar, with(written.other, R"({"zone": [1, {"a": null}]})")));
  EXPECT_FALSE(takes(grammar, with(written.other, R"("now")")));
  // Nobody else is called, and no call is left open.
  std::string unknown = good;
  unknown.replace(unknown.find("weather"), 7, "wether1");
  EXPECT_FALSE(takes(grammar, unknown));
  EXPECT_FALSE(takes(grammar, good.substr(0, good.find("days"))));
}

TEST_P(StrictCalls, WhatIsDrawnIsCalls) {
  const ReplyGrammar of = family(GetParam().format);
  const CompiledGrammar grammar = compiled(GrammarKind::structural_tag, grammar_of(of));
  std::size_t ended = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    GrammarMatcher matcher(grammar, demo_tokenizer().eos_ids());
    const std::string mark(of.calls->opens[0]);
    bool begun = true;
    for (const Token id : tokens_of(mark)) begun &= matcher.accept(id);
    ASSERT_TRUE(begun);
    const auto text = random_text(matcher, seed, 3000);
    if (!text) continue;
    ++ended;
    const std::vector<ToolCall> calls = calls_in(of, mark + *text);
    ASSERT_GE(calls.size(), 1U) << *text;
    const Json arguments = Json::parse(calls[0].arguments);
    if (calls[0].name == "weather") {
      EXPECT_TRUE(arguments["city"] == "Berlin" || arguments["city"] == "北京") << *text;
      EXPECT_EQ(arguments["days"].get<int>() % 2, 1) << *text;
    }
  }
  EXPECT_GE(ended, 2U);
}

INSTANTIATE_TEST_SUITE_P(
    Families, StrictCalls,
    ::testing::Values(
        Written{"hermes",
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": ARGUMENTS}\n</tool_call>",
                "<tool_call>\n{\"name\": \"time\", \"arguments\": ARGUMENTS}\n</tool_call>"},
        Written{"mistral", "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": ARGUMENTS}]",
                "[TOOL_CALLS]time[ARGS]ARGUMENTS"},
        Written{"granite", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": ARGUMENTS}]",
                "<|tool_call|>[{\"name\": \"time\", \"arguments\": ARGUMENTS}]"},
        Written{"phi4_mini_json",
                "<|tool_call|>[{\"name\": \"weather\", \"arguments\": ARGUMENTS}]<|/tool_call|>",
                "functools[{\"name\": \"time\", \"arguments\": ARGUMENTS}]<|/tool_call|>"},
        Written{
            "command_r",
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", "
            "\"parameters\": ARGUMENTS}\n]<|END_ACTION|>",
            "<|START_ACTION|>[{\"tool_name\": \"time\", \"parameters\": ARGUMENTS}]<|END_ACTION|>"},
        Written{"hunyuan_a13b",
                "<tool_calls>[{\"name\": \"weather\", \"arguments\": ARGUMENTS}]</tool_calls>",
                "<tool_calls>[{\"name\": \"time\", \"arguments\": ARGUMENTS}]</tool_calls>"},
        Written{
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            "ARGUMENTS\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\nARGUMENTS\n```"
            "<｜tool▁call▁end｜>"},
        Written{"deepseek_v31",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>ARGUMENTS"
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>ARGUMENTS"
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
        Written{
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
            "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:12"
            "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>"}));

TEST(StrictCalls, FamiliesWithoutAMarkOrJsonAreNotHeld) {
  for (const char* format : {"llama3_json", "xlam", "qwen3_xml", "glm45", "pythonic", "openai"}) {
    EXPECT_EQ(grammar_of(family(format)), "") << format;
  }
  EXPECT_EQ(strict_names(choice()), "weather");
}

TEST(StrictCalls, ReasoningIsFree) {
  const ReplyGrammar of = family("hermes", true);
  const std::string call =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": "
      "{\"city\":\"Berlin\",\"days\":5}}\n</tool_call>";
  const std::string wrong = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
  const CompiledGrammar may = compiled(GrammarKind::structural_tag, grammar_of(of));
  const CompiledGrammar begun =
      compiled(GrammarKind::structural_tag, grammar_of(of, "<|assistant|><think>\n"));
  EXPECT_TRUE(takes(may, "<think>\nI try " + wrong + "\n</think>\n\nWell: " + call));
  EXPECT_TRUE(takes(may, "Well: " + call));
  EXPECT_FALSE(takes(may, "<think>\nI try it\n</think>\n\nWell: " + wrong));
  EXPECT_TRUE(takes(begun, "I try " + wrong + "\n</think>\n\nWell: " + call));
  EXPECT_FALSE(takes(begun, "I try it\n</think>\n\n" + wrong));
  EXPECT_FALSE(takes(begun, "I try it"));
}

TEST(StrictCalls, AKeywordThatCannotBeEnforcedIsRefused) {
  const std::string tools = R"([{"type":"function","function":{"name":"f","strict":true,
      "parameters":{"properties":{"a":{"type":"array","uniqueItems":true}}}}},
      {"type":"function","function":{"name":"g","parameters":{"type":"text"}}}])";
  const ReplyGrammar of = family("hermes");
  const ReplyParser parser(of, "", true, "seed");
  const auto held = [&](const ToolSchemas& schemas) {
    return compiled(GrammarKind::structural_tag,
                    *strict_calls(strict(tools), schemas, of, demo_tokenizer(), parser));
  };
  EXPECT_EQ(held({}).refused().rfind("f: uniqueItems at #/properties/a (", 0), 0U)
      << held({}).refused();
  const CompiledGrammar reported = held({.asked = {.open = {}, .refuse = false}, .defaults = {}});
  EXPECT_EQ(reported.refused(), "");
  EXPECT_EQ(reported.unenforced().rfind("f: uniqueItems at #/properties/a", 0), 0U);
}

TEST(Reasoning, AGrammarBehindIt) {
  const ReplyGrammar of = family("hermes", true);
  const struct {
    GrammarKind kind;
    const char* text;
  } table[] = {
      {GrammarKind::regex, "[0-9]{3}"},
      {GrammarKind::ebnf, "root ::= [0-9] [0-9] [0-9]"},
      {GrammarKind::json_schema, R"({"allOf":[{"type":"integer"},{"minimum":100,"maximum":999}]})"},
      {GrammarKind::structural_tag,
       R"({"type":"structural_tag","format":{"type":"regex","pattern":"[0-9]{3}"}})"}};
  for (const auto& line : table) {
    const auto behind = [&](bool begun) {
      return compiled(GrammarKind::structural_tag,
                      behind_reasoning(line.kind, line.text, of, demo_tokenizer(), begun).value());
    };
    const CompiledGrammar begun = behind(true);
    EXPECT_TRUE(takes(begun, "It is {\"7\" </thin or 8.\n</think>\n\n512")) << line.text;
    EXPECT_FALSE(takes(begun, "It is 8\n</think>\n\n51")) << line.text;
    EXPECT_FALSE(takes(begun, "512")) << line.text;
    const CompiledGrammar may = behind(false);
    EXPECT_TRUE(takes(may, "<think>It is {\"7\" </thin or 8.\n</think>\n\n512")) << line.text;
    EXPECT_TRUE(takes(may, "512")) << line.text;
    EXPECT_FALSE(takes(may, "<think>512")) << line.text;
    EXPECT_FALSE(takes(may, "It is 512")) << line.text;
  }
}

TEST(Reasoning, ModesOfASchemaStay) {
  const ReplyGrammar of = family("hermes", true);
  const auto behind = [&](const std::string& schema) {
    return compiled(GrammarKind::structural_tag, *behind_reasoning(GrammarKind::json_schema, schema,
                                                                   of, demo_tokenizer(), false));
  };
  const std::string schema = R"({"properties":{"a":{}},"required":["a"],"type":"object"})";
  EXPECT_FALSE(takes(behind(schema), R"({"b":1,"a":1})"));
  EXPECT_TRUE(takes(behind("open " + schema), R"({"b":1,"a":1})"));
  const std::string unique = R"({"type":"array","uniqueItems":true})";
  EXPECT_EQ(behind(unique).refused(), "");
  EXPECT_EQ(behind(unique).unenforced().rfind("uniqueItems at #", 0), 0U)
      << behind(unique).unenforced();
  EXPECT_NE(behind("all " + unique).refused(), "");
}

}  // namespace
}  // namespace baton
