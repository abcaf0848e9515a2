// Masks of a made-up vocabulary: each token is allowed where its bytes are, and every way can end.
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/schema/schema_matcher.h"

namespace baton::schema {
namespace {

std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto made = [] {
    std::set<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.insert(std::string(1, static_cast<char>(byte)));
    std::mt19937_64 random(3);
    const std::string marks = "{}[]\",: \n\\";
    const std::string letters = "abcdefnrstu0123456789-.eéü😀";
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      const std::string& from = random() % 3 == 0 ? marks : letters;
      for (std::uint64_t n = 1 + random() % 5; n > 0; --n) text += from[random() % from.size()];
      if (random() % 4 == 0) text += marks[random() % marks.size()];
      texts.insert(text);
    }
    std::vector<std::string> all = {""};
    all.insert(all.end(), texts.begin(), texts.end());
    const auto size = static_cast<std::uint32_t>(all.size() + 7);
    return std::make_shared<const Vocabulary>(std::move(all), size);
  }();
  return made;
}

const std::vector<std::string>& schemas() {
  static const std::vector<std::string> all = {
      R"({})",
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":4},"tag":{"enum":["red","réd","r\"d"]}},"required":["tag"]})",
      R"({"type":"string","pattern":"^.+$","minLength":2})",
      R"({"type":"string","pattern":"^[a-f0-9]{2,6}$"})",
      R"({"type":"string","not":{"pattern":"a"},"maxLength":9})",
      R"({"type":"array","items":{"type":"integer","minimum":-20,"maximum":3000,"multipleOf":5},"minItems":1})",
      R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object","maxProperties":3})",
      R"({"type":"object","patternProperties":{"^a":{"type":"null"},"b$":{"type":"null"}},"additionalProperties":false,"minProperties":2})",
      R"({"type":"string","format":"date-time"})",
      R"({"$defs":{"t":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/t"}}},"additionalProperties":false}},"$ref":"#/$defs/t"})",
      R"({"type":"array","contains":{"type":"string"},"maxItems":3,"items":{"type":["string","null"]}})",
      R"({"type":"object","not":{"propertyNames":{"enum":["a","b"]}},"maxProperties":1,"properties":{"c":{"type":"null"}}})",
      // The last of a few characters must be one of them: no mask may allow a token that has none.
      R"({"type":"string","pattern":"e$","maxLength":8})",
      R"({"type":"string","pattern":"^a+(bcd)*$","maxLength":9})",
      // Of the names only one may come, and two must.
      R"({"type":"object","properties":{"c":{"type":"null"},"dd":{}},"propertyNames":{"maxLength":1},"minProperties":2})",
  };
  return all;
}

std::shared_ptr<CompiledSchema> compiled(const std::string& schema, bool closed,
                                         std::size_t max_bytes = CompiledSchema::kMaxBytes) {
  auto made = CompiledSchema::compile(schema, {.closed = closed}, vocabulary(), max_bytes);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  return std::move(made).value();
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

/// Draws tokens until it may end; each mask is compared with what its tokens' bytes do.
void draw(const std::string& schema, bool closed, unsigned seed, bool compare) {
  SchemaMatcher matcher(compiled(schema, closed));
  std::mt19937_64 random(seed);
  std::string text;
  for (int n = 0; n < 60; ++n) {
    const std::vector<std::uint32_t> tokens = allowed(matcher);
    if (compare && n < 12) {
      const std::set<std::uint32_t> in(tokens.begin(), tokens.end());
      for (std::uint32_t id = 1; id < vocabulary()->size(); ++id) {
        SchemaMatcher copy = matcher;
        const std::string_view piece = vocabulary()->text(id);
        ASSERT_EQ(in.count(id) == 1, !piece.empty() && copy.accept(piece))
            << schema << " after " << text << " token " << piece;
      }
    }
    if (matcher.may_end() && (tokens.empty() || random() % 3 == 0)) {
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
      return;
    }
    ASSERT_FALSE(tokens.empty()) << schema << " is stuck after " << text;
    std::string_view piece = vocabulary()->text(tokens[random() % tokens.size()]);
    for (int tries = 0; tries < 10 && piece.find_first_of("\"]}") == piece.npos; ++tries) {
      piece = vocabulary()->text(tokens[random() % tokens.size()]);
    }
    ASSERT_TRUE(matcher.accept(piece));
    text += piece;
  }
}

TEST(SchemaMasks, AreWhatTheBytesAllow) {
  for (const std::string& schema : schemas()) {
    for (const bool closed : {false, true}) draw(schema, closed, 1, true);
  }
}

TEST(SchemaMasks, NeverGetStuck) {
  for (const std::string& schema : schemas()) {
    for (unsigned seed = 0; seed < 40; ++seed) draw(schema, seed % 2 == 0, seed, false);
  }
}

TEST(SchemaMasks, WhatIsForgottenIsDerivedAgain) {
  const std::string schema =
      R"({"type":"array","items":{"type":"string","maxLength":400,"pattern":"^(a|b)*$"}})";
  // Room for the schema and some of the states of one text.
  const auto small = compiled(schema, true, 400'000);
  SchemaMatcher first(small);
  ASSERT_TRUE(first.accept("[\"ab"));
  for (int i = 0; i < 30; ++i) {
    SchemaMatcher other(small);
    ASSERT_TRUE(other.accept("[\"" + std::string(static_cast<std::size_t>(10 * i), 'b') + "\""));
    other.may_end();
  }
  EXPECT_TRUE(first.accept("ab\"]"));
  EXPECT_TRUE(first.may_end());
  EXPECT_LT(small->bytes(), 4'000'000U);
}

TEST(SchemaMasks, ATokenThatIsRefusedChangesNothing) {
  SchemaMatcher matcher(compiled(R"({"enum":["ab","ac"]})", true));
  EXPECT_TRUE(matcher.accept("\"a"));
  EXPECT_FALSE(matcher.accept("b\"x"));
  EXPECT_TRUE(matcher.accept("c\""));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_TRUE(allowed(matcher).empty());
}

}  // namespace
}  // namespace baton::schema
