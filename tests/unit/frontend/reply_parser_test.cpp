#include "frontend/chat/reply_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "frontend/openai/chat_parts.h"

namespace baton {
namespace {

constexpr const char* kHermes = "<think> </think> <tool_call> {\"name\"";
constexpr const char* kMistral = "[TOOL_CALLS] [ARGS] [/THINK]";
constexpr const char* kLlama = "<|start_header_id|>ipython ... {\"name\": x, \"parameters\": y}";

struct Case {
  const char* family;  // text that its templates hold
  const char* prompt;  // its end
  bool tools;
  std::string reply;
  std::string parts;  // "R:reasoning|C:content|T:name(arguments)"
};

/// The parts with neighbours of one kind joined: how they were cut is not compared.
std::string play(const Case& line, std::size_t piece) {
  ReplyParser parser(ReplyGrammar::of_templates(line.family), line.prompt, line.tools, "42");
  std::string out;
  char last = 0;
  std::uint32_t calls = 0;
  const auto take = [&](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      if (part.kind == ReplyPart::Kind::arguments) {
        EXPECT_EQ(last, 'T');
        EXPECT_EQ(part.index + 1, calls);
        EXPECT_FALSE(part.text.empty());
        out += part.text;
        continue;
      }
      if (last == 'T') out += ")";
      if (part.kind == ReplyPart::Kind::call) {
        EXPECT_EQ(part.index, calls++);
        EXPECT_EQ(part.call.arguments, "");
        out += (out.empty() ? "T:" : "|T:") + part.call.name + "(";
        last = 'T';
        continue;
      }
      EXPECT_FALSE(part.text.empty());
      const char kind = part.kind == ReplyPart::Kind::reasoning ? 'R' : 'C';
      if (kind != last) out += std::string(out.empty() ? "" : "|") + kind + ":";
      last = kind;
      out += part.text;
    }
  };
  const std::string_view reply = line.reply;
  for (std::size_t at = 0; at < reply.size(); at += piece) take(parser.feed(reply.substr(at, piece)));
  take(parser.finish());
  EXPECT_EQ(parser.calls(), calls);
  return last == 'T' ? out + ")" : out;
}

void expect_parts(const std::vector<Case>& table) {
  for (const Case& line : table) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7},
                                    std::size_t{1000}}) {
      EXPECT_EQ(play(line, piece), line.parts) << line.reply << "\n in pieces of " << piece;
    }
  }
}

TEST(ReplyParser, Reasoning) {
  expect_parts({
      {kHermes, "", false, "<think>\nHm.\n\nYes.\n</think>\n\nHello  there\n", "R:Hm.\n\nYes.|C:Hello  there\n"},
      {kHermes, "", false, " \n<think></think>Hi", "C:Hi"},
      {kHermes, "", false, "Hi <think>x</think>", "C:Hi <think>x</think>"},
      {kHermes, "", false, "<thin", "C:<thin"},
      {kHermes, "", false, "  <b>", "C:  <b>"},
      {kHermes, "", false, "", ""},
      {kHermes, "", false, "<think>\nnever ends </thin", "R:never ends </thin"},
      {kHermes, "<|im_start|>assistant\n<think>\n", false, "so\n</think>\n\nHi", "R:so|C:Hi"},
      {kHermes, "<think>\n\n</think>\n\n", false, "<think>Hi", "C:<think>Hi"},
      {kMistral, "", false, "[THINK]a[/THINK]b", "R:a|C:b"},
      {"no marks", "", false, "<think>a</think>b", "C:<think>a</think>b"},
      {kHermes, "", true, "<think>\na <tool_call>\n</think>\n<tool_call>{\"name\":\"f\"}</tool_call>",
       "R:a <tool_call>|T:f({})"},
  });
}

TEST(ReplyParser, TaggedCalls) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.50, \"a\": [true, \"é\\n\"]}}\n</tool_call>";
  const std::string made = "T:f({\"b\":1.50,\"a\":[true,\"é\\n\"]})";
  expect_parts({
      {kHermes, "", true, call, made},
      {kHermes, "", true, call + "\n" + call + "\n", made + "|" + made},
      {kHermes, "", true, "Let me see.\n\n" + call, "C:Let me see.|" + made},
      {kHermes, "", true, call + "\nDone. \n", made + "|C:Done. \n"},
      {kHermes, "", true, "a < b \n\n c <tool", "C:a < b \n\n c <tool"},
      {kHermes, "", true, "<tool_call>not json</tool_call> x", "C:<tool_call>not json</tool_call> x"},
      {kHermes, "", true, "a \n<tool_call></tool_call>\n", "C:a \n<tool_call></tool_call>\n"},
      {kHermes, "", true, "<tool_call>{\"name\": 5}</tool_call>", "C:<tool_call>{\"name\": 5}</tool_call>"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>",
       "C:<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}</tool_call>",
       "T:f({\"x\":1})"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"argum", "C:<tool_call>{\"name\":\"f\",\"argum"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\"}", "T:f({})"},
      {kHermes, "", false, call, "C:" + call},
      {"<tool_call> <function=", "", true, call, "C:" + call},
  });
}

TEST(ReplyParser, BracketedCalls) {
  expect_parts({
      {kMistral, "", true, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]}\"}}, {\"name\": \"g\", \"arguments\": {}}]",
       "T:f({\"a\":\"]}\"})|T:g({})"},
      {kMistral, "", true, "Well.\n[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]\n", "C:Well.|T:f({})"},
      {kMistral, "", true, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}",
       "T:f({\"a\":1})|T:g({})"},
      {kMistral, "", true, "[TOOL_CALLS]f{\"a\": {}}", "T:f({\"a\":{}})"},
      {kMistral, "", true, "[TOOL_CALLS][{\"name\":\"f\"", "C:[TOOL_CALLS][{\"name\":\"f\""},
      {kMistral, "", true, "a[TOOL", "C:a[TOOL"},
      {kMistral, "", true, "a\n[TOOL_CALLS]\n", "C:a\n[TOOL_CALLS]\n"},
      {kMistral, "", false, "[TOOL_CALLS]f[ARGS]{}", "C:[TOOL_CALLS]f[ARGS]{}"},
  });
}

TEST(ReplyParser, AReplyThatIsJson) {
  expect_parts({
      {kLlama, "", true, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "T:f({\"a\":1})"},
      {kLlama, "", true, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
       "T:f({})|T:g({})"},
      {kLlama, "", true, "{\"answer\": 5}", "C:{\"answer\": 5}"},
      {kLlama, "", true, "{\"name\": \"f\"", "C:{\"name\": \"f\""},
      {kLlama, "", true, "Sure: {\"name\": \"f\", \"parameters\": {}}",
       "C:Sure: {\"name\": \"f\", \"parameters\": {}}"},
      {kLlama, "", true, " <b>", "C: <b>"},
      {kLlama, "", true, "\n", "C:\n"},
      {kLlama, "", false, "{\"name\": \"f\", \"parameters\": {}}",
       "C:{\"name\": \"f\", \"parameters\": {}}"},
  });
}

/// Once a call is sure, it stays one, whatever follows.
TEST(ReplyParser, CallsThatAreCutOffOrBroken) {
  expect_parts({
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"x y", "T:f({\"a\":\"x y)"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}", "T:f({\"a\":1})"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call> x", "T:f({\"a\":1})|C:x"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool", "T:f({\"a\":1})|C:</tool"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}\n", "T:f({\"a\":1})"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":oops}}</tool_call>",
       "T:f({\"a\":)|C:oops}}</tool_call>"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}, \"id\": [1]}</tool_call>!",
       "T:f({\"a\":\"</tool_call>\"})|C:!"},
      {kHermes, "", true, "<tool_call>{\"name\":\"</tool_call>\",\"arguments\":{}}",
       "C:<tool_call>{\"name\":\"</tool_call>\",\"arguments\":{}}"},
      // Held back until they are whole.
      {kHermes, "", true, "<tool_call>{\"arguments\":{\"a\": 1},\"name\":\"f\"}</tool_call>x", "T:f({\"a\":1})|C:x"},
      {kHermes, "", true, "<tool_call>{\"arguments\":{\"a\": 1},\"name\":\"f", "C:<tool_call>{\"arguments\":{\"a\": 1},\"name\":\"f"},
      {kMistral, "", true, "[TOOL_CALLS]f[ARGS]{\"a\": [1, tr", "T:f({\"a\":[1,tr)"},
      {kMistral, "", true, "[TOOL_CALLS]f[ARGS]{\"a\": 1} Done. \n", "T:f({\"a\":1})|C:Done. \n"},
      {kMistral, "", true, "[TOOL_CALLS]f[ARGS]{\"a\": nil} x", "T:f({\"a\":n)|C:il} x"},
      {kMistral, "", true, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, {\"arguments\":{},\"name\":\"g\"}, {\"name\":\"h\"}] x",
       "T:f({})|T:g({})|T:h({})|C: x"},
      {kMistral, "", true, "[TOOL_CALLS][{\"name\":\"f\"}, {\"name\":\"g\",\"arguments\":{\"a\":\"", "T:f({})|T:g({\"a\":\")"},
      {kMistral, "", true, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}] [TOOL_CALLS]g[ARGS]{} [TOOL",
       "T:f({})|T:g({})|C:[TOOL"},
      {kMistral, "", true, "[TOOL_CALLS][5]", "C:[TOOL_CALLS][5]"},
      {kMistral, "", true, "[TOOL_CALLS]{}", "C:[TOOL_CALLS]{}"},
      {kLlama, "", true, "{\"name\": \"f\", \"parameters\": {\"a\": 1", "T:f({\"a\":1)"},
      {kLlama, "", true, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}} and so", "T:f({})|C:and so"},
      {kLlama, "", true, "{\"name\": \"f\", \"parameters\": {}}; {\"x\": 1}", "T:f({})|C:; {\"x\": 1}"},
      {kLlama, "", true, "{\"name\": \"f\", \"parameters\": {}};\n{\"name\": \"g\"}", "T:f({})|T:g({})"},
  });
}

/// Pseudo-random texts over the grammars' own letters, in pseudo-random pieces.
TEST(ReplyParser, ThePartsDoNotDependOnThePieces) {
  const std::vector<std::string> words = {
      "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}",
      "{\"name\": \"f\", ", "\"arguments\": {", "\"parameters\": {", "\"a\": 1.5e3, ", "\"b\": \"x\\\"<\"",
      "\"arguments\": \"{}\"", "\"name\":\"g\"", ", ", " ", "\n", ";", ":", "\"", "\\", "f", "true", "-0", "你",
      "<|python_tag|>", "{\"name\": \"f\", \"parameters\": {\"k\": [1, {}]}}"};
  std::uint32_t state = 1;
  const auto random = [&state](std::size_t n) {
    state = state * 1664525U + 1013904223U;
    return static_cast<std::size_t>(state >> 8U) % n;
  };
  std::size_t with_calls = 0;
  for (int i = 0; i < 30'000; ++i) {
    Case line{i % 3 == 0 ? kHermes : i % 3 == 1 ? kMistral : kLlama, "", true, "", ""};
    if (random(2) == 0) {
      line.reply = i % 3 == 0   ? "<tool_call>{\"name\": \"f\", \"arguments\": {"
                   : i % 3 == 1 ? random(2) == 0 ? "[TOOL_CALLS]f[ARGS]{" : "[TOOL_CALLS] [{\"name\": \"f\", "
                                : "{\"name\": \"f\", \"parameters\": {";
    }
    for (std::size_t n = random(12); n > 0; --n) line.reply += words[random(words.size())];
    const std::string whole = play(line, 1'000'000);
    with_calls += whole.find("T:f(") != whole.npos ? 1 : 0;
    for (const std::size_t piece : {std::size_t{1}, 1 + random(6), 1 + random(40)}) {
      ASSERT_EQ(play(line, piece), whole) << line.reply << "\n in pieces of " << piece;
    }
  }
  EXPECT_GT(with_calls, 5'000U);
}

/// A prefix of a reply has said nothing that the whole reply does not say.
TEST(ReplyParser, ArgumentsArriveAsTheyAreMade) {
  const std::string reply =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"long text\", \"b\": [1, 2]}}\n</tool_call>";
  ReplyParser parser(ReplyGrammar::of_templates(kHermes), "", true, "42");
  std::string arguments;
  std::size_t pieces = 0;
  for (const char c : reply) {
    for (const ReplyPart& part : parser.feed(std::string_view(&c, 1))) {
      if (part.kind == ReplyPart::Kind::arguments) ++pieces;
      arguments += part.text;
    }
    EXPECT_TRUE(std::string_view("{\"a\":\"long text\",\"b\":[1,2]}").starts_with(arguments));
  }
  EXPECT_EQ(arguments, "{\"a\":\"long text\",\"b\":[1,2]}");
  EXPECT_GT(pieces, 20U);
}

TEST(JsonScanner, AcceptsWhatAParserAcceptsLetterByLetter) {
  const std::vector<std::string> good = {
      "{}", "[]", " {\"a\" : [ 1 , -0.5e+3 , 0 ] , \"b\":{\"\\u00e9\\n\":null}}", "[true,false,[[]],\"\"]", "[1E5,10,-7]"};
  for (const std::string& text : good) {
    JsonScanner scanner;
    for (std::size_t i = 0; i < text.size(); ++i) {
      EXPECT_FALSE(scanner.done()) << text;
      ASSERT_TRUE(scanner.feed(text[i])) << text << " at " << i;
    }
    EXPECT_TRUE(scanner.done()) << text;
    EXPECT_FALSE(scanner.feed('x'));
    EXPECT_TRUE(nlohmann::json::accept(text));
  }
  const std::vector<std::string> bad = {
      "1", "\"", "{a", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1,]", "[,", "[01", "[1.]", "[1.e", "[-]", "[+", "[.",
      "[1e]", "[tru]", "[nulll", "[\"\\x", "[\"\\u12g", "[\"\n", "[1 2", "{\"a\" 1", "[}", "{]", "[]]", std::string(65, '[')};
  for (const std::string& text : bad) {
    JsonScanner scanner;
    std::size_t i = 0;
    while (i < text.size() && scanner.feed(text[i])) ++i;
    EXPECT_EQ(i, text.size() - 1) << text << ": the last letter is the one at fault";
  }
}

TEST(ReplyParser, IdsDifferAndSuitTheFamily) {
  const auto ids = [](const char* family, const std::string& seed, const std::string& reply) {
    ReplyParser parser(ReplyGrammar::of_templates(family), "", true, seed);
    std::vector<ReplyPart> parts = parser.feed(reply);
    const auto rest = parser.finish();
    parts.insert(parts.end(), rest.begin(), rest.end());
    std::vector<std::string> found;
    for (const ReplyPart& part : parts) {
      if (part.kind == ReplyPart::Kind::call) found.push_back(part.call.id);
    }
    return found;
  };
  const std::string two = "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}";
  const auto some = ids(kMistral, "1", two);
  const auto others = ids(kMistral, "2", two);
  ASSERT_EQ(some.size(), 2U);
  for (const std::string& id : some) {
    EXPECT_EQ(id.size(), 9U);
    EXPECT_EQ(id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
              std::string::npos);
  }
  EXPECT_NE(some[0], some[1]);
  EXPECT_NE(some[0], others[0]);
  EXPECT_EQ(ids(kHermes, "1", "<tool_call>{\"name\":\"f\"}</tool_call>")[0].substr(0, 5), "call_");
}

TEST(ReplyParser, LongRepliesTakeLinearTime) {
  ReplyParser parser(ReplyGrammar::of_templates(kHermes), "", true, "");
  std::size_t given = 0;
  const auto count = [&](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) given += part.text.size() + part.call.arguments.size();
  };
  count(parser.feed("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\""));
  for (int i = 0; i < 300'000; ++i) count(parser.feed("<x y"));
  count(parser.feed("\"}}</tool_call>"));
  for (int i = 0; i < 300'000; ++i) count(parser.feed(" <tool"));
  count(parser.finish());
  EXPECT_GT(given, 2'500'000U);
}

TEST(ChatParts, AreMembersOfTheApisObjects) {
  const std::vector<ReplyPart> parts = {
      {ReplyPart::Kind::reasoning, "hm\n", {}, 0},
      {ReplyPart::Kind::content, "Say \"", {}, 0},
      {ReplyPart::Kind::content, "x\"", {}, 0},
      {ReplyPart::Kind::call, "", {"call_1", "f", ""}, 0},
      {ReplyPart::Kind::arguments, "{\"a\":", {}, 0},
      {ReplyPart::Kind::arguments, "1}", {}, 0},
      {ReplyPart::Kind::call, "", {"call_2", "g", ""}, 1},
      {ReplyPart::Kind::arguments, "{}", {}, 1}};
  EXPECT_EQ(delta_members(parts[0]), R"("reasoning_content":"hm\n")");
  EXPECT_EQ(delta_members(parts[1]), R"("content":"Say \"")");
  EXPECT_EQ(delta_members(parts[6]),
            R"("tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"g","arguments":""}}])");
  EXPECT_EQ(delta_members(parts[4]),
            R"("tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}])");
  EXPECT_EQ(message_members(parts),
            R"("content":"Say \"x\"","reasoning_content":"hm\n","tool_calls":[)"
            R"({"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},)"
            R"({"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}])");
  EXPECT_EQ(message_members({}), R"("content":"")");
  EXPECT_EQ(message_members({parts[3]}).substr(0, 15), "\"content\":null,");
}

}  // namespace
}  // namespace baton
