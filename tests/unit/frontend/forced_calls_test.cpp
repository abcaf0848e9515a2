// Whatever is drawn under the grammar of a forced call, the reply's parser finds calls in it.
#include "frontend/chat/forced_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "random_text.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::compiled;
using testing::demo_tokenizer;
using testing::random_text;

const char* const kTools = R"([
  {"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":
    {"city":{"enum":["Berlin","北京"]},"days":{"type":"integer","minimum":1,"maximum":9}},
    "required":["city","days"]}}},
  {"type":"function","function":{"name":"time"}}])";

ForcedChoice choice(const std::string& name, bool several) { return {true, name, several, kTools}; }

ReplyGrammar family(const char* format) {
  ReplyGrammar grammar;
  grammar.calls = call_format(format);
  return grammar;
}

void check_call(const ToolCall& call, const std::string& text) {
  const Json arguments = Json::parse(call.arguments);
  if (call.name == "time") {
    EXPECT_TRUE(arguments.is_object()) << text;
    return;
  }
  EXPECT_EQ(call.name, "weather") << text;
  EXPECT_TRUE(arguments["city"] == "Berlin" || arguments["city"] == "北京") << text;
  EXPECT_TRUE(arguments["days"] >= 1 && arguments["days"] <= 9) << text;
}

class ForcedCalls : public ::testing::TestWithParam<const char*> {};

/// The header is given, so that one function alone can be forced.
TEST(ForcedCallsOfChannels, WhatIsDrawnIsTheNamedCall) {
  ReplyGrammar harmony = family("openai");
  harmony.channels = true;
  const auto forced = forced_calls(choice("weather", true), harmony, demo_tokenizer());
  ASSERT_TRUE(forced.ok()) << forced.status().message();
  EXPECT_EQ(forced.value().begun,
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>");
  const CompiledGrammar grammar = compiled(GrammarKind::structural_tag, forced.value().grammar);
  std::size_t ended = 0;
  for (unsigned seed = 0; seed < 10; ++seed) {
    const auto text = random_text(grammar, seed);
    if (!text) continue;
    ++ended;
    ReplyParser parser(harmony, "<|start|>assistant", true, "seed");
    EXPECT_TRUE(parser.feed(forced.value().begun).empty());
    ToolCall call;
    auto parts = parser.feed(*text);
    for (ReplyPart& part : parser.finish()) parts.push_back(std::move(part));
    for (const ReplyPart& part : parts) {
      if (part.kind == ReplyPart::Kind::call) call.name = part.call.name;
      call.arguments += part.text;
    }
    EXPECT_EQ(parser.calls(), 1U);
    check_call(call, *text);
  }
  EXPECT_GT(ended, 0U);
  const auto any = forced_calls(choice("", true), harmony, demo_tokenizer());
  ASSERT_FALSE(any.ok());
  EXPECT_NE(any.status().message().find("name it"), std::string::npos);
}

TEST_P(ForcedCalls, WhatIsDrawnIsCalls) {
  const struct {
    ForcedChoice asked;
    std::size_t most;
  } table[] = {{choice("", true), 100}, {choice("", false), 1}, {choice("weather", true), 1}};
  for (const auto& line : table) {
    const auto forced = forced_calls(line.asked, family(GetParam()), demo_tokenizer());
    ASSERT_TRUE(forced.ok()) << forced.status().message();
    EXPECT_EQ(forced.value().begun, "");  // none of the marks is a token of this vocabulary
    const CompiledGrammar grammar = compiled(GrammarKind::structural_tag, forced.value().grammar);
    std::size_t ended = 0;
    for (unsigned seed = 0; seed < 10; ++seed) {
      const auto text = random_text(grammar, seed);
      if (!text) continue;
      ++ended;
      ReplyParser parser(family(GetParam()), "", true, "seed",
                         std::make_shared<ToolParameters>(tool_parameters(kTools)));
      std::size_t calls = 0;
      auto parts = parser.feed(*text);
      for (ReplyPart& part : parser.finish()) parts.push_back(std::move(part));
      for (std::size_t i = 0; i < parts.size();) {
        ASSERT_EQ(parts[i].kind, ReplyPart::Kind::call) << *text;
        ToolCall call = parts[i].call;
        while (++i < parts.size() && parts[i].kind == ReplyPart::Kind::arguments) {
          call.arguments += parts[i].text;
        }
        EXPECT_TRUE(line.asked.name.empty() || call.name == line.asked.name) << *text;
        check_call(call, *text);
        ++calls;
      }
      EXPECT_GE(calls, 1U) << *text;
      EXPECT_LE(calls, line.most) << *text;
    }
    EXPECT_GE(ended, 5U);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ForcedCalls,
                         ::testing::Values("hermes", "mistral", "llama3_json", "qwen3_xml",
                                           "seed_oss", "minimax_m2", "glm45", "deepseek_v3",
                                           "deepseek_v31", "kimi_k2", "granite", "phi4_mini_json",
                                           "command_r", "hunyuan_a13b", "xlam"));

TEST(ForcedCalls, AnUnknownFamilyIsRefused) {
  EXPECT_FALSE(forced_calls(choice("", true), family(""), demo_tokenizer()).ok());
}

}  // namespace
}  // namespace baton
