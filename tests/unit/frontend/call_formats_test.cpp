// Calls in every format: what a family's template writes down is read back, however it is cut, and
// what is not whole is text.
#include "frontend/chat/calls/call_format.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "frontend/chat/calls/call_reader.h"
#include "frontend/chat/reply_parser.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

struct Call {
  std::string name;
  Json arguments;
};

const char* const kTools = R"([{"type":"function","function":{"name":"search-web","parameters":
  {"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"},"on":{"type":"boolean"},
  "list":{"type":"array"},"tree":{"type":"object"}}}}},{"type":"function","function":{"name":"get_time"}}])";

std::shared_ptr<const ToolParameters> tools() {
  static const auto parsed = std::make_shared<const ToolParameters>(tool_parameters(kTools));
  return parsed;
}

/// A value as text: strings as they are, everything else as JSON.
std::string raw(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string python(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  if (value.is_array() || value.is_object()) {
    std::string out(1, value.is_array() ? '[' : '{');
    for (const auto& [key, item] : value.items()) {
      if (out.size() > 1) out += ", ";
      if (value.is_object()) out += Json(key).dump() + ": ";
      out += python(item);
    }
    return out + (value.is_array() ? "]" : "}");
  }
  return value.dump();
}

std::string object(const CallFormat& format, const Call& call) {
  return Json{{std::string(format.name_key), call.name},
              {std::string(format.arguments_key), call.arguments}}
      .dump();
}

/// As the family's published template writes a turn with these calls.
std::string written(const CallFormat& format, const std::vector<Call>& calls) {
  const std::string name(format.name);
  const std::string open(format.opens[0]);
  const std::string close(format.closes[0]);
  std::string out;
  if (format.shape == CallShape::list || format.shape == CallShape::either) {
    out = open + "[";
    for (const Call& call : calls) {
      if (&call != &calls.front()) out += ", ";
      out += object(format, call);
    }
    return out + "]" + close;
  }
  if (format.shape == CallShape::pythonic) {
    out = open + "[";
    for (const Call& call : calls) {
      if (&call != &calls.front()) out += ", ";
      out += call.name + "(";
      for (const auto& [key, value] : call.arguments.items()) {
        if (out.back() != '(') out += ", ";
        out += key + "=" + python(value);
      }
      out += ")";
    }
    return out + "]" + close;
  }
  if (format.shape == CallShape::named) out = open;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    switch (format.shape) {
      case CallShape::object:
        if (i > 0) out += format.whole_reply() ? "; " : "\n";
        out += format.whole_reply() ? object(format, call)
                                    : open + "\n" + object(format, call) + "\n" + close;
        break;
      case CallShape::named: {
        const std::string called =
            name == "kimi_k2" ? "functions." + call.name + ":" + std::to_string(i) : call.name;
        out += std::string(format.open) + std::string(format.name_begin) + called +
               std::string(format.name_end) + call.arguments.dump();
        out += name == "deepseek_v3" ? "\n```" + std::string(format.closes[1]) : close;
        break;
      }
      case CallShape::xml: {
        // MiniMax has one section for all calls.
        const bool section = name == "minimax_m2";
        if (!section || i == 0) out += open + "\n";
        out += std::string(format.name_begin) + call.name + std::string(format.name_end) + "\n";
        for (const auto& [key, value] : call.arguments.items()) {
          const std::string line = section ? "" : "\n";
          out += std::string(format.key_begin) + key + std::string(format.key_end) + line +
                 raw(value) + line + "</parameter>\n";
        }
        out += std::string(format.arguments_end) + "\n";
        if (!section || i + 1 == calls.size()) out += close;
        if (!section && i + 1 < calls.size()) out += "\n";
        break;
      }
      case CallShape::pairs:
        out += open + call.name + "\n";
        for (const auto& [key, value] : call.arguments.items()) {
          out += "<arg_key>" + key + "</arg_key>\n<arg_value>" + raw(value) + "</arg_value>\n";
        }
        out += close;
        break;
      default:
        break;
    }
  }
  if (name == "kimi_k2") out += format.closes[1];
  if (name == "deepseek_v3") out += format.closes[2];
  if (name == "deepseek_v31") out += format.closes[1];
  return out;
}

struct Told {
  std::string content;
  std::vector<Call> calls;
  std::vector<std::string> ids;
};

Told read(const CallFormat& format, const std::string& reply, std::size_t piece) {
  ReplyGrammar grammar;
  grammar.calls = &format;
  ReplyParser parser(grammar, "", true, "seed", tools());
  Told told;
  const auto take = [&](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      if (part.kind == ReplyPart::Kind::call) {
        told.calls.push_back({part.call.name, {}});
        told.ids.push_back(part.call.id);
      } else if (part.kind == ReplyPart::Kind::arguments) {
        told.calls.back().arguments = Json::parse(part.text);  // throws where it is not whole
      } else {
        told.content += part.text;
      }
    }
  };
  for (std::size_t at = 0; at < reply.size(); at += piece)
    take(parser.feed(reply.substr(at, piece)));
  take(parser.finish());
  EXPECT_EQ(parser.calls(), told.calls.size());
  return told;
}

bool same(const std::vector<Call>& a, const std::vector<Call>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const Call& x, const Call& y) {
           return x.name == y.name && x.arguments == y.arguments;
         });
}

class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return random_() % n; }

  std::string text(const CallFormat& format) {
    static const std::vector<std::string> words = {
        "a", "Köln", "日本",    "🚀", "\"", "\\",   "\n", "\t",       "{",
        "}", "[",    "]",       "'", "(",  ",",    " ",  "<",        "</",
        ">", ";",    "\\u00e9", "`", "|",  "null", "5",  "function", "\x01"};
    std::string out;
    for (std::size_t n = below(8); n > 0; --n) {
      if (below(4) == 0) {  // one of the format's own marks, not followed by another
        const std::vector<std::string> marks = call_marks(format);
        if (!marks.empty()) out += marks[below(marks.size())] + "x";
      } else {
        out += words[below(words.size())];
      }
    }
    return out;
  }
  Json value(const CallFormat& format, int depth) {
    switch (below(depth > 2 ? 4 : 6)) {
      case 0:
        return text(format);
      case 1:
        return static_cast<std::int64_t>(below(2000)) - 1000;
      case 2:
        return below(2) == 0;
      case 3:
        return nullptr;
      case 4: {
        Json list = Json::array();
        for (std::size_t n = below(3); n > 0; --n) list.push_back(value(format, depth + 1));
        return list;
      }
      default: {
        Json object = Json::object();
        for (std::size_t n = below(3); n > 0; --n) {
          object["k" + std::to_string(below(9))] = value(format, depth + 1);
        }
        return object;
      }
    }
  }
  Call call(const CallFormat& format) {
    if (below(4) == 0) return {"get_time", Json::object()};
    Json arguments = Json::object();
    if (below(2) == 0) arguments["text"] = text(format);
    if (below(2) == 0) arguments["n"] = below(100);
    if (below(3) == 0) arguments["on"] = below(2) == 0;
    if (below(3) == 0) arguments["list"] = Json::array({value(format, 1), value(format, 1)});
    if (below(3) == 0) arguments["tree"] = Json{{"x", value(format, 1)}};
    return {"search-web", std::move(arguments)};
  }

 private:
  std::mt19937 random_;
};

class CallFormats : public ::testing::TestWithParam<const char*> {};

TEST_P(CallFormats, CallsAreReadHoweverTheyAreCut) {
  const CallFormat& format = *call_format(GetParam());
  for (unsigned seed = 0; seed < 300; ++seed) {
    Draws draws(seed);
    std::vector<Call> calls;
    for (std::size_t n = 1 + draws.below(3); n > 0; --n) calls.push_back(draws.call(format));
    const bool text_before = !format.whole_reply() && draws.below(2) == 0;
    const std::string reply = (text_before ? "Let me see.\n\n" : "") + written(format, calls);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{5}, reply.size()}) {
      const Told told = read(format, reply, piece);
      ASSERT_TRUE(same(told.calls, calls)) << seed << " in pieces of " << piece << ":\n" << reply;
      ASSERT_EQ(told.content, text_before ? "Let me see." : "") << reply;
    }
  }
}

TEST_P(CallFormats, ALongCallMayComeInOnePiece) {
  const CallFormat& format = *call_format(GetParam());
  const std::vector<Call> calls = {{"search-web", Json{{"text", std::string(5000, 'x')}}}};
  const std::string reply = written(format, calls);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{1500}, reply.size()}) {
    EXPECT_TRUE(same(read(format, reply, piece).calls, calls)) << piece;
  }
}

/// Cut off at any byte: each call that was not whole is text.
TEST_P(CallFormats, WhatIsCutOffIsThatCallOrText) {
  const CallFormat& format = *call_format(GetParam());
  for (unsigned seed = 0; seed < 12; ++seed) {
    Draws draws(seed);
    const std::vector<Call> calls = {draws.call(format), draws.call(format)};
    const std::string reply = written(format, calls);
    for (std::size_t end = 0; end < reply.size(); ++end) {
      const std::string cut = reply.substr(0, end);
      const Told told = read(format, cut, 3);
      ASSERT_LE(told.calls.size(), 2U);
      const std::vector<Call> first(calls.begin(),
                                    calls.begin() + static_cast<long>(told.calls.size()));
      ASSERT_TRUE(same(told.calls, first)) << cut;
      if (told.calls.empty()) {
        ASSERT_EQ(told.content, cut);
      }
      ASSERT_EQ(read(format, cut, 1).content, told.content) << cut;
    }
  }
}

TEST_P(CallFormats, UnknownNamesAreText) {
  const CallFormat& format = *call_format(GetParam());
  const std::string reply = written(format, {{"rm", Json{{"text", "-rf"}}}});
  for (const std::size_t piece : {std::size_t{1}, reply.size()}) {
    const Told told = read(format, reply, piece);
    EXPECT_TRUE(told.calls.empty()) << reply;
    EXPECT_EQ(told.content, reply);
  }
}

/// Marks behind one another, and strings that never end: the time is linear in the bytes.
TEST_P(CallFormats, LongRepliesTakeLinearTime) {
  const CallFormat& format = *call_format(GetParam());
  const std::string begun = written(format, {{"search-web", Json{{"text", "@"}}}});
  const std::string head = begun.substr(0, begun.find('@'));
  const std::string open(format.opens[0].empty() ? "{" : format.opens[0]);
  for (const std::string& part : {std::string("<x y"), std::string("\n"), open}) {
    ReplyGrammar grammar;
    grammar.calls = &format;
    ReplyParser parser(grammar, "", true, "seed", tools());
    std::size_t given = 0;
    const auto count = [&](const std::vector<ReplyPart>& parts) {
      for (const ReplyPart& one : parts) given += one.text.size();
    };
    count(parser.feed(head));
    for (int i = 0; i < 200'000; ++i) count(parser.feed(part));
    count(parser.finish());
    EXPECT_GT(given + 2 * part.size(), 200'000 * (part == "\n" ? 0 : part.size())) << part;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CallFormats,
                         ::testing::Values("hermes", "mistral", "llama3_json", "qwen3_xml",
                                           "seed_oss", "minimax_m2", "glm45", "deepseek_v3",
                                           "deepseek_v31", "kimi_k2", "granite", "phi4_mini_json",
                                           "command_r", "hunyuan_a13b", "xlam", "pythonic",
                                           "llama4_pythonic"));

TEST(CallFormatNames, AreThoseOfTheParsersOfVllm) {
  for (const CallFormat& format : call_formats()) {
    EXPECT_EQ(call_format(format.name), &format);
    EXPECT_NE(call_format_names().find(format.name), std::string::npos);
  }
  EXPECT_EQ(call_format("qwen3_coder")->name, "qwen3_xml");
  EXPECT_EQ(call_format("nobody"), nullptr);
  EXPECT_EQ(call_format(""), nullptr);
}

TEST(CallFormatNames, KimisIdsAreTheModelsOwn) {
  const CallFormat& format = *call_format("kimi_k2");
  const Told told = read(format, written(format, {{"get_time", Json::object()}}), 4);
  ASSERT_EQ(told.ids.size(), 1U);
  EXPECT_EQ(told.ids[0], "functions.get_time:0");
}

TEST(PythonCalls, LiteralsBecomeJson) {
  const auto json = [](const std::string& value) {
    const auto calls = read_python_calls("[f(a=" + value + ")]");
    return calls ? calls->front().arguments : "none";
  };
  EXPECT_EQ(json("'it\\'s'"), R"({"a":"it's"})");
  EXPECT_EQ(json("\"\\u00e9\\x41\\U0001F680\\q\""), "{\"a\":\"éA🚀\\\\q\"}");
  EXPECT_EQ(json("\"\\ud83d\\ude80\""), "{\"a\":\"🚀\"}");
  EXPECT_EQ(json("(1, -2.5e3,)"), "{\"a\":[1,-2.5e3]}");
  EXPECT_EQ(json("{'k': [True, None]}"), "{\"a\":{\"k\":[true,null]}}");
  for (const char* bad : {"1_000", "1.", ".5", "x", "'open", "{1: 2}", "[1", "lambda: 0",
                          "\"\\ud83d\"", "b''", "1 + 1", "f()"}) {
    EXPECT_EQ(json(bad), "none") << bad;
  }
  EXPECT_FALSE(read_python_calls("[f(1)]"));
  EXPECT_FALSE(read_python_calls("[f(a=1)] x"));
  EXPECT_FALSE(read_python_calls("[]"));
  std::string deep(100, '[');
  EXPECT_EQ(json(deep + std::string(100, ']')), "none");
}

}  // namespace
}  // namespace baton
