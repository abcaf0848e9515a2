#include "planning/trace_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace baton {
namespace {

std::string error_of(const std::string& text) {
  const auto trace = read_trace(text);
  return trace.ok() ? "" : trace.status().message();
}

TEST(TraceFile, LinesOfThePublishedShape) {
  const auto trace = read_trace(
      "{\"timestamp\": 27482, \"input_length\": 955, \"output_length\": 52, \"hash_ids\": [46, "
      "47]}\n"
      "\n"
      "{\"timestamp\":30535,\"input_length\":7,\"output_length\":26,\"type\":\"x\"}");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(2U, trace.value().size());
  EXPECT_EQ(27482, trace.value()[0].at_ms);
  EXPECT_EQ(955U, trace.value()[0].input_tokens);
  EXPECT_EQ(52U, trace.value()[0].output_tokens);
  EXPECT_EQ((std::vector<std::int64_t>{46, 47}), trace.value()[0].hash_ids);
  EXPECT_TRUE(trace.value()[1].hash_ids.empty());
}

TEST(TraceFile, ABadLineIsNamed) {
  const std::string good = "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1}\n";
  EXPECT_EQ("no request in it", error_of("\n"));
  EXPECT_EQ("line 2: not a JSON object", error_of(good + "[1]"));
  EXPECT_EQ("line 3: timestamp lies before that of the request before",
            error_of(good + "\n{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1}"));
  EXPECT_EQ("line 1: input_length must lie between 1 and 1048576",
            error_of("{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}"));
  EXPECT_EQ("line 1: output_length must be an integer",
            error_of("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1.5}"));
  EXPECT_EQ("line 1: timestamp must be milliseconds between 0 and a week",
            error_of("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}"));
  const std::string start =
      "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": ";
  EXPECT_EQ("", error_of(start + "[1]}"));
  EXPECT_NE("", error_of(start + "[1, 2]}"));
  EXPECT_EQ("line 1: hash_ids must be integers", error_of(start + "[\"a\"]}"));
}

std::vector<Token> prompt(std::uint32_t tokens, std::vector<std::int64_t> ids,
                          std::size_t index = 0, std::uint64_t seed = 1) {
  std::vector<Token> made;
  make_prompt({0, tokens, 1, std::move(ids)}, index, seed, 10, 4000, made);
  return made;
}

TEST(TraceFile, EqualHashIdsAreEqualTokens) {
  const auto a = prompt(1200, {1, 2, 3});
  const auto b = prompt(1024, {1, 9}, 7, 5);
  const auto c = prompt(1024, {9, 1});
  ASSERT_EQ(1200U, a.size());
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 512, a.begin() + 1024, b.begin() + 512));
  EXPECT_TRUE(std::equal(b.begin() + 512, b.end(), c.begin()));  // wherever it stands
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, c.begin() + 512));
  for (const Token token : a) EXPECT_TRUE(token >= 10 && token < 4000);
}

TEST(TraceFile, WithoutHashIdsNoTwoPromptsAreAlike) {
  EXPECT_EQ(prompt(600, {}, 3), prompt(600, {}, 3));
  EXPECT_NE(prompt(600, {}, 3), prompt(600, {}, 4));
  EXPECT_NE(prompt(600, {}, 3, 1), prompt(600, {}, 3, 2));
  // What the ids do not cover is the request's own.
  const auto a = prompt(600, {1}, 3);
  const auto b = prompt(600, {1}, 4);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 512, a.end(), b.begin() + 512));
}

}  // namespace
}  // namespace baton
