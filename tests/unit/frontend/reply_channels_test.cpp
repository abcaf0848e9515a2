// Replies in the harmony format, against what the parser of OpenAI's own package finds in them
// (tests/golden/make_harmony.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/chat/reply_parser.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using Kind = ReplyPart::Kind;

constexpr const char* kFamily = "<|channel|> <|message|>";
constexpr const char* kPrompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";

Json golden_cases() {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(source != nullptr ? source : ".") + "/tests/golden/harmony.json");
  return Json::parse(std::string(std::istreambuf_iterator<char>(file), {})).at("cases");
}

/// Everything that a reply says, as harmony.json has it.
struct Told {
  std::string reasoning, content;
  Json calls = Json::array();

  void take(const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      if (part.kind == Kind::call) {
        EXPECT_EQ(part.index, calls.size());
        EXPECT_EQ(part.call.id.substr(0, 5), "call_");
        calls.push_back({{"name", part.call.name}, {"arguments", ""}});
        continue;
      }
      EXPECT_FALSE(part.text.empty());
      if (part.kind == Kind::arguments) {
        Json& arguments = calls.at(part.index)["arguments"];
        arguments = arguments.get<std::string>() + part.text;
      } else {
        (part.kind == Kind::reasoning ? reasoning : content) += part.text;
      }
    }
  }
  bool operator==(const Told&) const = default;
};

Told told(const std::vector<std::string>& pieces, bool tools = true,
          const std::string& prompt = kPrompt) {
  ReplyParser parser(ReplyGrammar::of_templates(kFamily), prompt, tools, "42");
  Told all;
  for (const std::string& piece : pieces) all.take(parser.feed(piece));
  all.take(parser.finish());
  EXPECT_EQ(parser.calls(), all.calls.size());
  return all;
}

std::vector<std::string> cut(const std::string& reply, std::size_t piece) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < reply.size(); at += piece)
    pieces.push_back(reply.substr(at, piece));
  return pieces;
}

TEST(ReplyChannels, AreWhatTheOfficialParserFinds) {
  const Json cases = golden_cases();
  EXPECT_GE(cases.size(), 16U);
  for (const Json& one : cases) {
    const std::string reply = one.at("reply");
    SCOPED_TRACE(reply);
    Told want;
    want.reasoning = one.at("reasoning");
    want.content = one.at("content");
    want.calls = Json::array();
    for (const Json& call : one.at("calls")) {
      // The official parser reports what is no JSON as a call; here it is the answer's text.
      const std::string arguments = call["arguments"];
      if (Json::parse(arguments, nullptr, false).is_object()) {
        want.calls.push_back({{"name", call["name"]}, {"arguments", arguments}});
      } else {
        want.content += arguments;
      }
    }
    for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{5}, reply.size()}) {
      const Told got = told(cut(reply, piece));
      EXPECT_EQ(got.reasoning, want.reasoning) << piece;
      EXPECT_EQ(got.content, want.content) << piece;
      EXPECT_EQ(got.calls, want.calls) << piece;
    }
    for (std::size_t border = 0; border <= reply.size(); ++border) {
      ASSERT_TRUE(told({reply.substr(0, border), reply.substr(border)}) == want) << border;
    }
  }
}

/// What comes is passed on at once, but for what may be the beginning of a mark.
TEST(ReplyChannels, TextsArriveAsTheyAreMade) {
  ReplyParser parser(ReplyGrammar::of_templates(kFamily), kPrompt, true, "42");
  EXPECT_TRUE(parser.in_header());
  EXPECT_TRUE(parser.feed("<|channel|>analysis<|message|>").empty());
  EXPECT_FALSE(parser.in_header());
  EXPECT_EQ(parser.feed("one").front().text, "one");
  EXPECT_EQ(parser.feed(" two <|").front().text, " two ");
  EXPECT_TRUE(parser.feed("end|><|start|>assistant<|channel|>commentary to=functions.f").empty());
  EXPECT_TRUE(parser.feed(" <|constrain|>json<|message|>").empty());
  EXPECT_TRUE(parser.feed("{\"a\": ").empty());  // a call is reported when it is whole
  EXPECT_TRUE(parser.feed("1}").empty());
  const auto parts = parser.finish();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].kind, Kind::call);
  EXPECT_EQ(parts[0].call.name, "f");
  EXPECT_EQ(parts[1].text, "{\"a\": 1}");
}

/// Models forget marks, and templates are used with models that never knew them.
TEST(ReplyChannels, RepliesThatAreNotWhatTheyShouldBe) {
  const auto expect = [](const std::string& reply, const std::string& reasoning,
                         const std::string& content, const Json& calls = Json::array()) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{4}, reply.size() + 1}) {
      const Told got = told(cut(reply, piece));
      EXPECT_EQ(got.reasoning, reasoning) << reply << " in pieces of " << piece;
      EXPECT_EQ(got.content, content) << reply << " in pieces of " << piece;
      EXPECT_EQ(got.calls, calls) << reply << " in pieces of " << piece;
    }
  };
  expect("", "", "");
  expect("No header.", "", "No header.");
  expect("to", "", "to");
  expect("<|message|>No channel.", "", "No channel.");
  expect("<|channel|>final", "", "");
  expect("<|channel|>analysis<|message|>a<|end|>\n<|channel|>final<|message|>b", "a", "b");
  expect("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b", "a", "b");
  expect("<|channel|>analysis<|message|>a<|end|>b", "a", "b");
  expect("<|channel|>commentary to=functions.f<|message|><|call|>", "", "",
         {{{"name", "f"}, {"arguments", "{}"}}});
  expect("<|channel|>analysis" + std::string(600, 'x'), "",
         "<|channel|>analysis" + std::string(600, 'x'));
}

TEST(ReplyChannels, WhatThePromptHasBegun) {
  const std::string header = std::string(kPrompt) + "<|channel|>final<|message|>";
  EXPECT_EQ(told({"goes on"}, true, header + "It ").content, "goes on");
  EXPECT_EQ(
      told({"goes on"}, true, std::string(kPrompt) + "<|channel|>analysis<|message|>").reasoning,
      "goes on");
  EXPECT_EQ(
      told({"<|start|>assistant<|channel|>final<|message|>a"}, true, header + "b<|end|>").content,
      "a");
  EXPECT_EQ(told({"plain"}, true, "no marks").content, "plain");
}

/// Nobody can be given a call who has defined no functions.
TEST(ReplyChannels, WithoutToolsACallIsText) {
  const Told got = told({"<|channel|>commentary to=functions.f<|message|>{}"}, /*tools=*/false);
  EXPECT_EQ(got.content, "{}");
  EXPECT_TRUE(got.calls.empty());
  const auto marks = ReplyGrammar::of_templates(kFamily).marks(false);
  EXPECT_NE(std::find(marks.begin(), marks.end(), "<|channel|>"), marks.end());
}

TEST(ReplyChannels, LongRepliesTakeLinearTime) {
  ReplyParser parser(ReplyGrammar::of_templates(kFamily), kPrompt, true, "42");
  std::size_t given = 0;
  parser.feed("<|channel|>final<|message|>");
  for (int i = 0; i < 300'000; ++i) {
    for (const ReplyPart& part : parser.feed("<|en <|")) given += part.text.size();
  }
  EXPECT_GT(given, 2'000'000U);
}

}  // namespace
}  // namespace baton
