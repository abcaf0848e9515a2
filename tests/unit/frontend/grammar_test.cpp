// Masks of the demo model's vocabulary: what is drawn at random under them matches its grammar.
#include "text/grammar/grammar_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "random_text.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::allowed;
using testing::compiled;
using testing::demo_tokenizer;
using testing::engine;
using testing::is_eos;
using testing::random_text;

const char* const kPerson = R"({"type":"object","properties":{
  "name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150},
  "tags":{"type":"array","items":{"enum":["red","green","blau"]},"minItems":1,"maxItems":3},
  "address":{"type":"object","properties":{"zip":{"type":"string","pattern":"^[0-9]{5}$"},
  "home":{"type":"boolean"}},"required":["zip","home"]}},"required":["name","age","tags","address"]})";

void check_person(const std::string& text) {
  const Json value = Json::parse(text);
  ASSERT_EQ(value.size(), 4U) << text;
  ASSERT_TRUE(value["name"].is_string() && value["age"].is_number_integer()) << text;
  EXPECT_TRUE(value["age"] >= 0 && value["age"] <= 150) << text;
  ASSERT_TRUE(value["tags"].is_array()) << text;
  EXPECT_TRUE(value["tags"].size() >= 1 && value["tags"].size() <= 3) << text;
  for (const Json& tag : value["tags"]) {
    EXPECT_TRUE(tag == "red" || tag == "green" || tag == "blau") << text;
  }
  EXPECT_TRUE(std::regex_match(value["address"]["zip"].get<std::string>(), std::regex("[0-9]{5}")));
  EXPECT_TRUE(value["address"]["home"].is_boolean()) << text;
}

TEST(Grammar, WhatIsDrawnMatchesItsSchema) {
  const CompiledGrammar grammar = compiled(GrammarKind::json_schema, kPerson);
  for (unsigned seed = 0; seed < 30; ++seed) {
    const auto text = random_text(grammar, seed);
    ASSERT_TRUE(text.has_value()) << "seed " << seed;
    check_person(*text);
  }
}

TEST(Grammar, ASchemasKeywordsAreEnforced) {
  const CompiledGrammar grammar = compiled(
      GrammarKind::json_schema,
      R"({"allOf":[{"type":"integer","minimum":10},{"not":{"multipleOf":2}},{"maximum":99}]})");
  EXPECT_EQ(grammar.unenforced(), "");
  for (unsigned seed = 0; seed < 30; ++seed) {
    const std::string text = random_text(grammar, seed).value_or("0");
    const int value = std::stoi(text);
    EXPECT_TRUE(value >= 10 && value <= 99 && value % 2 == 1) << text;
  }
}

TEST(Grammar, OpenObjectsHoldOtherKeys) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"null"}},"maxProperties":1,"minProperties":1})";
  std::size_t others = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const auto closed = random_text(compiled(GrammarKind::json_schema, schema), seed);
    EXPECT_TRUE(!closed || Json::parse(*closed).contains("a")) << *closed;
    const auto open = random_text(compiled(GrammarKind::json_schema, "open " + schema), seed);
    if (open && !Json::parse(*open).contains("a")) ++others;
  }
  EXPECT_GT(others, 5U);
}

TEST(Grammar, AnyObject) {
  const CompiledGrammar grammar = compiled(GrammarKind::json_schema, R"({"type":"object"})");
  std::size_t members = 0;
  std::size_t ended = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    const auto text = random_text(grammar, seed);
    if (!text) continue;
    ++ended;
    const Json value = Json::parse(*text);
    ASSERT_TRUE(value.is_object()) << *text;
    members += value.size();
  }
  EXPECT_GT(ended, 15U);
  EXPECT_GT(members, 0U) << "nothing but empty objects";
}

TEST(Grammar, RegexAndEbnfAndStructuralTag) {
  const CompiledGrammar date = compiled(GrammarKind::regex, R"(\d{4}-(0[1-9]|1[0-2])-[0-3]\d)");
  const CompiledGrammar choice = compiled(GrammarKind::ebnf, R"(root ::= "yes" | "no" | "你好")");
  const CompiledGrammar tag =
      compiled(GrammarKind::structural_tag,
               R"({"type":"structural_tag","format":{"type":"tag","begin":"<a>","content":
          {"type":"json_schema","json_schema":{"type":"integer"}},"end":"</a>"}})");
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::string day = random_text(date, seed).value_or("");
    EXPECT_TRUE(std::regex_match(day, std::regex(R"(\d{4}-(0[1-9]|1[0-2])-[0-3]\d)"))) << day;
    const std::string word = random_text(choice, seed).value_or("");
    EXPECT_TRUE(word == "yes" || word == "no" || word == "你好") << word;
    const std::string tagged = random_text(tag, seed).value_or("");
    EXPECT_TRUE(std::regex_match(tagged, std::regex("<a>-?(0|[1-9][0-9]*)</a>"))) << tagged;
  }
}

// A model that has nothing to say does not say it for ever, in a schema of its own or in a tag's.
TEST(Grammar, WhitespaceInJsonIsBounded) {
  const std::string schema = R"({"type":"object","properties":{"a":{"const":1}},"required":["a"]})";
  const std::string inside = R"({"type":"json_schema","json_schema":)" + schema;
  const auto tag = [](const std::string& content) {
    return R"({"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"tag","begin":"","content":)" +
           content + R"(,"end":""}]}})";
  };
  const struct {
    GrammarKind kind;
    std::string text;
    int most;
  } table[] = {{GrammarKind::json_schema, schema, 32},
               {GrammarKind::structural_tag, tag(inside + "}"), 32},
               {GrammarKind::structural_tag, tag(inside + R"(,"max_whitespace_cnt":2})"), 2}};
  const Token line = demo_tokenizer().encode_plain("\n", true).back();
  ASSERT_EQ(demo_tokenizer().piece_text(line), "\n");
  for (const auto& row : table) {
    GrammarMatcher matcher(compiled(row.kind, row.text), demo_tokenizer().eos_ids());
    ASSERT_TRUE(matcher.accept(demo_tokenizer().encode_plain("{", true).back()));
    int lines = 0;
    while (lines < 100 && matcher.accept(line)) ++lines;
    EXPECT_EQ(lines, row.most) << row.text;
  }
}

// Ends come where the grammar may end and nowhere else; special tokens never.
TEST(Grammar, EndsOnlyWhereItMay) {
  const CompiledGrammar grammar = compiled(GrammarKind::regex, "a{2,3}");
  GrammarMatcher matcher(grammar, demo_tokenizer().eos_ids());
  const Token a = demo_tokenizer().encode_plain("a", true).back();
  ASSERT_EQ(demo_tokenizer().piece_text(a), "a");
  const Token eos = demo_tokenizer().eos_ids().front();
  for (int n = 0; n < 4; ++n) {
    const std::vector<Token> ids = allowed(matcher);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), eos), n >= 2 ? 1 : 0) << n;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), a), n < 3 ? 1 : 0) << n;
    EXPECT_EQ(matcher.may_end(), n >= 2) << n;
    for (const Token id : ids) {
      EXPECT_TRUE(is_eos(id) || !demo_tokenizer().is_special(id)) << id;
    }
    ASSERT_EQ(matcher.accept(a), n < 3);
  }
  EXPECT_TRUE(matcher.accept(eos));
  // Something else may keep the sequence alive (min_tokens): nothing but the end goes on.
  for (const Token id : allowed(matcher)) EXPECT_TRUE(is_eos(id));
  EXPECT_FALSE(matcher.accept(a));
  EXPECT_TRUE(matcher.accept(eos));
}

// A stop token that is text is judged as text.
TEST(Grammar, ATextThatStopsIsStillText) {
  const CompiledGrammar grammar = compiled(GrammarKind::regex, "ab");
  const Token a = demo_tokenizer().encode_plain("a", true).back();
  const Token b = demo_tokenizer().encode_plain("b", true).back();
  const std::vector<Token> stops{demo_tokenizer().eos_ids().front(), b};
  GrammarMatcher matcher(grammar, stops);
  EXPECT_FALSE(matcher.accept(b));
  EXPECT_TRUE(matcher.accept(a));
  EXPECT_TRUE(matcher.accept(b));
  EXPECT_TRUE(matcher.may_end());
}

// A matcher that was led along a sequence stands where the one stands that went by itself.
TEST(Grammar, StateFollowsFromTheTokens) {
  const CompiledGrammar grammar = compiled(GrammarKind::json_schema, kPerson);
  GrammarMatcher walked(grammar, demo_tokenizer().eos_ids());
  std::vector<Token> taken;
  std::mt19937 random(3);
  for (int n = 0; n < 40; ++n) {
    const std::vector<Token> ids = allowed(walked);
    GrammarMatcher led(grammar, demo_tokenizer().eos_ids());
    for (const Token id : taken) ASSERT_TRUE(led.accept(id));
    ASSERT_EQ(allowed(led), ids) << "after " << n;
    const Token next = ids[random() % ids.size()];
    ASSERT_TRUE(walked.accept(next));
    if (is_eos(next)) break;
    taken.push_back(next);
  }
  EXPECT_GT(taken.size(), 10U);
}

TEST(Grammar, SaysWhatIsWrong) {
  const struct {
    GrammarKind kind;
    std::string text;
    std::string part;
  } table[] = {
      {GrammarKind::json_schema, "{", ""},
      {GrammarKind::json_schema, R"({"type":"colour"})", "colour"},
      {GrammarKind::json_schema, R"({"$ref":"#/$defs/none"})", ""},
      {GrammarKind::regex, "(a", ""},
      {GrammarKind::regex, "[b-a]", ""},
      {GrammarKind::ebnf, "root ::= other", "other"},
      {GrammarKind::ebnf, "start ::= \"a\"", "root"},
      {GrammarKind::structural_tag, "{}", ""},
  };
  for (const auto& line : table) {
    const auto made = engine().compile(line.kind, line.text);
    ASSERT_FALSE(made.ok()) << line.text;
    EXPECT_EQ(made.status().code(), ErrorCode::invalid_argument);
    const std::string& why = made.status().message();
    EXPECT_FALSE(why.empty());
    EXPECT_NE(why.find(line.part), why.npos) << line.text << ": " << why;
    EXPECT_EQ(why.find(".cc:"), why.npos) << why;
  }
}

}  // namespace
}  // namespace baton
