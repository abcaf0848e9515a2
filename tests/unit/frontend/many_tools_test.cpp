// A thousand tools, one of which must be called.
#include "frontend/chat/many_tools.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "frontend/chat/forced_calls.h"
#include "random_text.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::compiled;
using testing::demo_tokenizer;
using testing::random_text;

std::string tool_name(int i) {
  // As of several MCP servers; one name is the beginning of another.
  return "mcp__server-" + std::to_string(i % 7) + "__tool." + std::to_string(i);
}

std::string many_tools(int count) {
  Json tools = Json::array();
  for (int i = 0; i < count; ++i) {
    const Json parameters = {{"type", "object"},
                             {"properties", {{"query", {{"type", "string"}, {"minLength", 1}}}}},
                             {"required", {"query"}}};
    tools.push_back(
        {{"type", "function"}, {"function", {{"name", tool_name(i)}, {"parameters", parameters}}}});
  }
  return tools.dump();
}

TEST(ManyTools, TheirNamesAreHeldTo) {
  const std::string tools = many_tools(1000);
  ToolParameters known = tool_parameters(tools);
  ASSERT_EQ(known.size(), 1000U);
  const auto names = std::make_shared<const ToolParameters>(known);
  for (const char* format : {"hermes", "llama3_json", "mistral"}) {
    ReplyGrammar family;
    family.calls = call_format(format);
    const auto forced = forced_calls({true, "", true, tools}, family, demo_tokenizer());
    ASSERT_TRUE(forced.ok()) << forced.status().message();
    ASSERT_GT(forced.value().grammar.size(), SamplingParams::kMaxGrammarBytes);
    const std::string grammar = names_only(forced.value().grammar);
    ASSERT_LT(grammar.size(), SamplingParams::kMaxGrammarBytes) << format;
    const CompiledGrammar made = compiled(GrammarKind::structural_tag, grammar);
    std::size_t calls = 0;
    for (unsigned seed = 0; seed < 12; ++seed) {
      const auto text = random_text(made, seed);
      if (!text) continue;
      ReplyParser parser(family, "", true, "seed", names);
      auto parts = parser.feed(*text);
      for (ReplyPart& part : parser.finish()) parts.push_back(std::move(part));
      ASSERT_FALSE(parts.empty()) << *text;
      EXPECT_EQ(parts[0].kind, ReplyPart::Kind::call) << format << ": " << *text;
      ++calls;
    }
    EXPECT_GT(calls, 0U) << format;
  }
}

TEST(ManyTools, FewTagsKeepTheirShape) {
  const auto joined = [](const Json& tags) {
    const Json list = {{"type", "tags_with_separator"}, {"tags", tags}, {"separator", "\n"}};
    return Json::parse(
        names_only(Json{{"type", "structural_tag"}, {"format", list}}.dump()))["format"]["tags"];
  };
  const auto tag = [](const std::string& begin, const std::string& end) {
    return Json{{"type", "tag"},
                {"begin", begin},
                {"content", {{"type", "json_schema"}, {"style", "json"}, {"json_schema", true}}},
                {"end", end}};
  };
  const Json two = joined({tag("<a_b.c>", "x"), tag("<a_b.cd>", "x")});
  ASSERT_EQ(two.size(), 1U);
  EXPECT_EQ(two[0]["begin"], "<a_b.");
  EXPECT_EQ(two[0]["content"]["elements"][0]["pattern"], "(?:c|cd)");
  EXPECT_EQ(two[0]["content"]["elements"][1]["value"], ">");
  EXPECT_EQ(two[0]["content"]["elements"][2]["json_schema"], Json({{"type", "object"}}));
  EXPECT_EQ(joined({tag("<aa>", "x"), tag("<aaa>", "x")})[0]["content"]["elements"][0]["pattern"],
            "(?:a|aa)");
  EXPECT_EQ(joined({tag("<a.b>", "x"), tag("<c-d>", "x")})[0]["content"]["elements"][0]["pattern"],
            "(?:a\\.b|c-d)");
  const Json others = {tag("<a>", "x"), tag("<b>", "y")};
  EXPECT_EQ(joined(others), others);
  const Json odd = {tag("<a\">", "x"), tag("<b\n>", "x")};
  EXPECT_EQ(joined(odd), odd);
  EXPECT_EQ(names_only("no json"), "no json");
}

}  // namespace
}  // namespace baton
