// Structural tags with schemas: each token is allowed where its bytes are, also across the borders
// of a tag's parts, and every way can end.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/schema/schema_matcher.h"

namespace baton::schema {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kOpenToken = 1;
constexpr std::uint32_t kOtherToken = 2;

std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto made = [] {
    std::set<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.insert(std::string(1, static_cast<char>(byte)));
    for (const char* text : {"<call>", "</call>",       "<ca",      "ll>",      "l>{",
                             "}</",    "}</call>",      "7</call>", "x<call>{", "\"}</call>\n",
                             "><",     "</call><call>", "think>",   "\n\n{",    "</think>\n\n{\"",
                             "]}",     "\":",           "{\"",      "12",       "true",
                             "true<",  "<<ca"}) {
      texts.insert(text);
    }
    std::mt19937_64 random(5);
    const std::string letters = "<>/call{}\"7a:\n ";
    for (int i = 0; i < 1500; ++i) {
      std::string text;
      for (std::uint64_t n = 2 + random() % 4; n > 0; --n) text += letters[random() % 15];
      texts.insert(text);
    }
    std::vector<std::string> all = {"", "", ""};
    all.insert(all.end(), texts.begin(), texts.end());
    const auto size = static_cast<std::uint32_t>(all.size() + 7);
    return std::make_shared<const Vocabulary>(
        std::move(all), size,
        std::map<std::string, std::uint32_t, std::less<>>{{"[OPEN]", kOpenToken},
                                                          {"[OTHER]", kOtherToken}});
  }();
  return made;
}

std::shared_ptr<CompiledSchema> compiled(const std::string& format,
                                         std::size_t max_bytes = CompiledSchema::kMaxBytes) {
  const Json tag = Json::parse(R"({"type":"structural_tag","format":)" + format + "}");
  if (!supports_tag(tag, vocabulary()->special_ids())) throw std::runtime_error("not supported");
  auto made = CompiledSchema::compile_tag(tag, {}, vocabulary(), max_bytes);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  return std::move(made).value();
}

const char* const kSchema =
    R"({"type":"json_schema","json_schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}})";

std::string call_tag(const std::string& content = kSchema) {
  return R"({"type":"tag","begin":"<call>","content":)" + content + R"(,"end":"</call>"})";
}
std::string triggered(const std::string& more = "") {
  return R"({"type":"triggered_tags","triggers":["<call>"],"tags":[)" + call_tag() + "]" + more +
         "}";
}

const std::vector<std::string>& formats() {
  static const std::vector<std::string> all = {
      kSchema,
      call_tag(),
      call_tag(R"({"type":"json_schema","json_schema":{"type":"integer"}})"),
      call_tag(R"({"type":"json_schema","json_schema":{"enum":["<call>",7,"</call>"]}})"),
      R"({"type":"sequence","elements":[{"type":"tag","begin":"","content":{"type":"any_text"},
          "end":"</call>"},{"type":"optional","content":{"type":"const_string","value":"\n"}},)" +
          std::string(kSchema) + "]}",
      triggered(),
      triggered(R"(,"at_least_one":true)"),
      triggered(R"(,"stop_after_first":true)"),
      triggered(R"(,"any_special":true,"excludes":["aa"])"),
      R"({"type":"tags_with_separator","separator":"\n","at_least_one":true,"tags":[)" +
          call_tag() + "," + call_tag(R"({"type":"json_schema","json_schema":{"const":true}})") +
          "]}",
      R"({"type":"or","elements":[)" + call_tag() + "," + std::string(kSchema) + "]}",
      R"({"type":"token_triggered_tags","trigger_tokens":["[OPEN]"],"tags":[{"begin":
          {"type":"token","token":"[OPEN]"},"content":)" +
          std::string(kSchema) + R"(,"end":""}]})",
  };
  return all;
}

std::vector<std::uint32_t> allowed(SchemaMatcher& matcher) {
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  matcher.fill(mask);
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < mask.size(); ++i) {
    for (std::uint32_t word = mask[i]; word != 0; word &= word - 1) {
      out.push_back(32 * i + static_cast<std::uint32_t>(std::countr_zero(word)));
    }
  }
  return out;
}

bool accept(SchemaMatcher& matcher, std::uint32_t token) {
  const std::string_view text = vocabulary()->text(token);
  return text.empty() ? matcher.accept_special(token) : matcher.accept(text);
}

void compare(SchemaMatcher& matcher, const std::vector<std::uint32_t>& tokens,
             const std::string& where) {
  const std::set<std::uint32_t> in(tokens.begin(), tokens.end());
  for (std::uint32_t id = 0; id < vocabulary()->size(); ++id) {
    SchemaMatcher copy = matcher;
    ASSERT_EQ(in.contains(id), accept(copy, id))
        << where << " token " << id << " " << vocabulary()->text(id);
  }
}

/// Draws tokens, those that lead on to a call rather often.
void draw(const std::string& format, unsigned seed, bool compared) {
  SchemaMatcher matcher(compiled(format));
  std::mt19937_64 random(seed);
  std::string text;
  std::uint32_t last = 0;
  for (int n = 0; n < 120; ++n) {
    const std::vector<std::uint32_t> tokens = allowed(matcher);
    if (compared && n < 25) {
      ASSERT_NO_FATAL_FAILURE(compare(matcher, tokens, format + " after " + text));
    }
    if (matcher.may_end() && (tokens.empty() || random() % 8 == 0)) return;
    ASSERT_FALSE(tokens.empty()) << format << " is stuck after " << text;
    last = tokens[random() % tokens.size()];
    for (int tries = 0;
         tries < 8 && vocabulary()->text(last).find_first_of("<}") == std::string::npos; ++tries) {
      last = tokens[random() % tokens.size()];
    }
    ASSERT_TRUE(accept(matcher, last)) << format << " after " << text;
    text += vocabulary()->text(last).empty() ? "[" + std::to_string(last) + "]"
                                             : std::string(vocabulary()->text(last));
  }
}

TEST(TagMasks, AreWhatTheBytesAllow) {
  for (const std::string& format : formats()) {
    for (unsigned seed = 0; seed < 3; ++seed) draw(format, seed, true);
  }
}

TEST(TagMasks, NeverGetStuck) {
  for (const std::string& format : formats()) {
    for (unsigned seed = 0; seed < 40; ++seed) draw(format, seed, false);
  }
}

bool takes(const std::shared_ptr<CompiledSchema>& of, std::string_view text) {
  SchemaMatcher matcher(of);
  return matcher.accept(text) && matcher.may_end();
}

TEST(TagMasks, TextsOfTags) {
  const struct {
    std::string format;
    const char* text;
    bool allowed;
  } table[] = {
      {call_tag(), "<call>{\"a\": 5}</call>", true},
      {call_tag(), "<call>{\"a\": 5.5}</call>", false},
      {call_tag(), "{\"a\": 5}", false},
      {triggered(), "no call", true},
      {triggered(), "one <call>{\"a\":1}</call> and <<call>{\"a\":2}</call>", true},
      {triggered(), "one <call>{\"a\":\"x\"}</call>", false},
      {triggered(), "one <call>", false},
      {triggered(R"(,"stop_after_first":true)"), "one <call>{\"a\":1}</call>", true},
      {triggered(R"(,"stop_after_first":true)"), "one <call>{\"a\":1}</call> more", false},
      {triggered(R"(,"at_least_one":true)"), "one <call>{\"a\":1}</call>", false},
      {triggered(R"(,"at_least_one":true)"), "<call>{\"a\":1}</call> more", true},
      {triggered(R"(,"excludes":["bad"])"), "ba d", true},
      {triggered(R"(,"excludes":["bad"])"), "a bad one", false},
      {R"({"type":"star","content":)" + call_tag() + "}", "", true},
      {R"({"type":"plus","content":)" + call_tag() + "}", "", false},
      {R"({"type":"plus","content":)" + call_tag() + "}",
       "<call>{\"a\":1}</call><call>{\"a\":2}</call>", true},
  };
  for (const auto& line : table) {
    EXPECT_EQ(takes(compiled(line.format), line.text), line.allowed)
        << line.format << " " << line.text;
  }
}

TEST(TagMasks, SpecialTokensBeginTags) {
  const auto tag = compiled(formats().back());
  SchemaMatcher matcher(tag);
  ASSERT_TRUE(matcher.accept("free"));
  ASSERT_TRUE(matcher.accept_special(kOtherToken));
  ASSERT_TRUE(matcher.accept_special(kOpenToken));
  EXPECT_FALSE(matcher.accept("free"));
  EXPECT_FALSE(matcher.accept_special(kOtherToken));
  EXPECT_FALSE(matcher.may_end());
  ASSERT_TRUE(matcher.accept("{\"a\":3}"));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_TRUE(matcher.accept(" and more"));
}

TEST(TagMasks, WhatIsForgottenIsDerivedAgain) {
  const auto small = compiled(formats().back(), 300'000);
  SchemaMatcher first(small);
  ASSERT_TRUE(first.accept("text"));
  ASSERT_TRUE(first.accept_special(kOpenToken));
  ASSERT_TRUE(first.accept("{\"a\""));
  for (int i = 0; i < 40; ++i) {
    SchemaMatcher other(small);
    ASSERT_TRUE(other.accept_special(kOpenToken));
    ASSERT_TRUE(other.accept("{\"a\":" + std::to_string(7'919 * i + 1)));
    allowed(other);
  }
  EXPECT_FALSE(first.accept("}"));
  EXPECT_TRUE(first.accept(":1}"));
  EXPECT_TRUE(first.may_end());
}

TEST(TagMasks, WhatIsNotEnforcedIsNamed) {
  const auto tag = [](const std::string& more) {
    return R"({"type":"json_schema","json_schema":{"type":"array","uniqueItems":true})" + more +
           "}";
  };
  const auto plain = compiled(tag(""))->unenforced();
  ASSERT_EQ(plain.size(), 1U);
  EXPECT_EQ(plain[0].keyword, "uniqueItems");
  EXPECT_EQ(plain[0].name, "/format/json_schema");
  EXPECT_FALSE(plain[0].refused);
  const auto refused = compiled(tag(R"(,"name":"f","unenforceable":"refuse")"))->unenforced();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].name, "f");
  EXPECT_TRUE(refused[0].refused);
}

TEST(TagMasks, ABrokenSchemaIsAnErrorOrAnyObject) {
  const std::string wrong =
      R"({"type":"json_schema","json_schema":{"type":"object","properties":{"a":{"type":"text"}}})";
  EXPECT_THROW(compiled(wrong + "}"), std::runtime_error);
  const auto any = compiled(wrong + R"(,"best_effort":true})");
  EXPECT_EQ(any->unenforced().size(), 1U);
  EXPECT_TRUE(takes(any, "{\"a\": [1]}"));
  EXPECT_FALSE(takes(any, "5"));
  // What is no object by its type may be anything.
  const auto value =
      compiled(R"({"type":"json_schema","json_schema":{"type":"text"},"best_effort":true})");
  EXPECT_TRUE(takes(value, "5"));
}

TEST(TagMasks, WhatIsNotKnownIsNotSupported) {
  for (const char* format :
       {R"({"type":"any_text"})",                // no schema
        R"({"type":"sequence","elements":[]})",  // nothing
        R"({"type":"regex","pattern":"a"})",     // xgrammar's alone
        R"({"type":"token","token":"[NONE]"})",  // no special token
        R"({"type":"json_schema","json_schema":{},"style":"qwen_xml"})",
        R"({"type":"json_schema"})",
        R"({"type":"tag","begin":"a","content":{"type":"json_schema","json_schema":{}}})"}) {
    const Json tag =
        Json::parse(R"({"type":"structural_tag","format":)" + std::string(format) + "}");
    EXPECT_FALSE(supports_tag(tag, vocabulary()->special_ids())) << format;
  }
}

/// An end that must not come leaves nothing.
TEST(TagMasks, ATagThatCannotEndIsAnError) {
  const std::string format =
      R"({"type":"sequence","elements":[{"type":"tag","begin":"","content":{"type":"any_text",
      "excludes":["</"]},"end":"</call>"},)" +
      std::string(kSchema) + "]}";
  EXPECT_THROW(compiled(format), std::runtime_error);
}

}  // namespace
}  // namespace baton::schema
