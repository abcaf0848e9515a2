#include "frontend/chat/reply_parser.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "frontend/openai/chat_parts.h"

namespace baton {
namespace {

constexpr const char* kHermes = "<think> </think> <tool_call> {\"name\"";
constexpr const char* kMistral = "[TOOL_CALLS] [ARGS] [/THINK]";
constexpr const char* kLlama = "<|start_header_id|>ipython ... {\"name\": x, \"parameters\": y}";
constexpr const char* kCoder = "</think> <tool_call> <function=NAME> <parameter=KEY>";

/// What a request's tools say of the parameters of "f"; those of "g" and "h" are not told.
std::shared_ptr<const ToolParameters> coder_tools() {
  static const auto tools = std::make_shared<const ToolParameters>(tool_parameters(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
      "$defs":{"Point":{"type":"object"},"Loop":{"$ref":"#/$defs/Loop"}},"properties":{
        "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
        "z":{"type":"null"},"o":{"type":"object"},"a":{"type":"array"},"any":{"description":"?"},
        "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"two":{"type":["integer","string"]},
        "ref":{"$ref":"#/$defs/Point"},"loop":{"$ref":"#/$defs/Loop"},"e":{"enum":["x","y z"]},
        "level":{"enum":[1,2]},"date":{"type":"string","format":"date"}}}}},
      {"type":"function","function":{"name":"g"}},{"type":"function","function":{"name":"h"}}])"));
  return tools;
}

struct Case {
  const char* family;  // text that its templates hold
  const char* prompt;  // its end
  bool tools;
  std::string reply;
  std::string parts;  // "R:reasoning|C:content|T:name(arguments)"
};

/// The parts with neighbours of one kind joined: how they were cut is not compared.
std::string play(const Case& line, const std::vector<std::string>& pieces) {
  ReplyParser parser(ReplyGrammar::of_templates(line.family), line.prompt, line.tools, "42",
                     coder_tools());
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
  for (const std::string& piece : pieces) take(parser.feed(piece));
  take(parser.finish());
  EXPECT_EQ(parser.calls(), calls);
  return last == 'T' ? out + ")" : out;
}

std::string play(const Case& line, std::size_t piece) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < line.reply.size(); at += piece)
    pieces.push_back(line.reply.substr(at, piece));
  return play(line, pieces);
}

void expect_parts(const std::vector<Case>& table) {
  for (const Case& line : table) {
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, std::size_t{1000}}) {
      EXPECT_EQ(play(line, piece), line.parts) << line.reply << "\n in pieces of " << piece;
    }
  }
}

TEST(ReplyParser, Reasoning) {
  expect_parts({
      {kHermes, "", false, "<think>\nHm.\n\nYes.\n</think>\n\nHello  there\n",
       "R:Hm.\n\nYes.|C:Hello  there\n"},
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
      {kHermes, "", true,
       "<think>\na <tool_call>\n</think>\n<tool_call>{\"name\":\"f\"}</tool_call>",
       "R:a <tool_call>|T:f({})"},
  });
}

TEST(ReplyParser, TaggedCalls) {
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.50, \"a\": [true, "
      "\"é\\n\"]}}\n</tool_call>";
  const std::string made = "T:f({\"b\":1.50,\"a\":[true,\"é\\n\"]})";
  expect_parts({
      {kHermes, "", true, call, made},
      {kHermes, "", true, call + "\n" + call + "\n", made + "|" + made},
      {kHermes, "", true, "Let me see.\n\n" + call, "C:Let me see.|" + made},
      {kHermes, "", true, call + "\nDone. \n", made + "|C:Done. \n"},
      {kHermes, "", true, "a < b \n\n c <tool", "C:a < b \n\n c <tool"},
      {kHermes, "", true, "<tool_call>not json</tool_call> x",
       "C:<tool_call>not json</tool_call> x"},
      {kHermes, "", true, "a \n<tool_call></tool_call>\n", "C:a \n<tool_call></tool_call>\n"},
      {kHermes, "", true, "<tool_call>{\"name\": 5}</tool_call>",
       "C:<tool_call>{\"name\": 5}</tool_call>"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>",
       "C:<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>"},
      {kHermes, "", true,
       "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}</tool_call>",
       "T:f({\"x\":1})"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"argum",
       "C:<tool_call>{\"name\":\"f\",\"argum"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\"}", "T:f({})"},
      {kHermes, "", false, call, "C:" + call},
      {"<tool_call> <function=", "", true, call, "C:" + call},
  });
}

TEST(ReplyParser, BracketedCalls) {
  expect_parts({
      {kMistral, "", true,
       "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]}\"}}, {\"name\": \"g\", "
       "\"arguments\": {}}]",
       "T:f({\"a\":\"]}\"})|T:g({})"},
      {kMistral, "", true, "Well.\n[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]\n",
       "C:Well.|T:f({})"},
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
      {kLlama, "", true,
       "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
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

/// A call that is not whole is text, to the letter; only closing marks and a bracket may be
/// missing.
TEST(ReplyParser, CallsThatAreCutOffOrBroken) {
  const auto text = [](const char* family, const std::string& reply) {
    return Case{family, "", true, reply, "C:" + reply};
  };
  expect_parts({
      text(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"x y"),
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}", "T:f({\"a\":1})"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call> x",
       "T:f({\"a\":1})|C:x"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool",
       "T:f({\"a\":1})|C:</tool"},
      {kHermes, "", true, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}\n",
       "T:f({\"a\":1})"},
      text(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":oops}}</tool_call>"),
      {kHermes, "", true,
       "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}, \"id\": "
       "[1]}</tool_call>!",
       "T:f({\"a\":\"</tool_call>\"})|C:!"},
      text(kHermes, "<tool_call>{\"name\":\"</tool_call>\",\"arguments\":{}}"),
      {kHermes, "", true, "<tool_call>{\"arguments\":{\"a\": 1},\"name\":\"f\"}</tool_call>x",
       "T:f({\"a\":1})|C:x"},
      text(kHermes, "<tool_call>{\"arguments\":{\"a\": 1},\"name\":\"f"),
      // A whole call behind one that is cut off.
      {kHermes, "", true, "<tool_call>{\"name\": \"f\", oh <tool_call>{\"name\":\"g\"}</tool_call>",
       "C:<tool_call>{\"name\": \"f\", oh|T:g({})"},
      text(kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": [1, tr"),
      {kMistral, "", true, "[TOOL_CALLS]f[ARGS]{\"a\": 1} Done. \n", "T:f({\"a\":1})|C:Done. \n"},
      text(kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": nil} x"),
      {kMistral, "", true,
       "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, {\"arguments\":{},\"name\":\"g\"}, "
       "{\"name\":\"h\"}] x",
       "T:f({})|T:g({})|T:h({})|C:x"},
      {kMistral, "", true, "[TOOL_CALLS][{\"name\":\"f\"}, {\"name\":\"g\",\"arguments\":{\"a\":\"",
       "T:f({})|C:, {\"name\":\"g\",\"arguments\":{\"a\":\""},
      {kMistral, "", true,
       "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}] [TOOL_CALLS]g[ARGS]{} [TOOL",
       "T:f({})|T:g({})|C:[TOOL"},
      text(kMistral, "[TOOL_CALLS][5]"),
      text(kMistral, "[TOOL_CALLS]f[ARGS]No. Say: {\"a\": 1}"),
      text(kMistral, "[TOOL_CALLS]f[ARGS][{\"a\": 1}]"),
      text(kMistral, "[TOOL_CALLS]{}"),
      text(kLlama, "{\"name\": \"f\", \"parameters\": {\"a\": 1"),
      {kLlama, "", true, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}} and so",
       "T:f({})|C:and so"},
      {kLlama, "", true, "{\"name\": \"f\", \"parameters\": {}}; {\"x\": 1}",
       "T:f({})|C:; {\"x\": 1}"},
      {kLlama, "", true, "{\"name\": \"f\", \"parameters\": {}};\n{\"name\": \"g\"}",
       "T:f({})|T:g({})"},
  });
}

TEST(ReplyParser, OnlyToolsOfTheRequestAreCalled) {
  for (const std::string reply : {"<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>",
                                  "<tool_call>{\"name\":5}</tool_call>"}) {
    expect_parts({{kHermes, "", true, reply, "C:" + reply}});
  }
  const std::string person = "{\"name\": \"Bob\", \"age\": 5}";
  expect_parts({{kLlama, "", true, person, "C:" + person},
                {kMistral, "", true, "[TOOL_CALLS]rm[ARGS]{}", "C:[TOOL_CALLS]rm[ARGS]{}"},
                {kCoder, "", true, "<function=rm></function>", "C:<function=rm></function>"}});
  // The name shows it: the rest is passed on as it arrives.
  ReplyParser parser(ReplyGrammar::of_templates(kLlama), "", true, "42", coder_tools());
  EXPECT_FALSE(parser.feed("{\"name\": \"Bob\"").empty());
  EXPECT_FALSE(parser.feed(", \"age\"").empty());
}

TEST(ReplyParser, ArgumentsThatAreNoObjectYet) {
  const auto call = [](const std::string& arguments) {
    return "<tool_call>{\"name\":\"f\",\"arguments\":" + arguments + "}</tool_call>";
  };
  std::string controls = "{\"a\":\"line\n\ttab\x01\"}";
  expect_parts({
      {kHermes, "", true, call("\"\""), "T:f({})"},
      {kHermes, "", true, call("null"), "T:f({})"},
      {kHermes, "", true, call(" \" \" "), "T:f({})"},
      {kHermes, "", true, call("[]"), "C:" + call("[]")},
      {kHermes, "", true, call("5"), "C:" + call("5")},
      {kHermes, "", true, call(controls), "T:f({\"a\":\"line\\n\\ttab\\u0001\"})"},
      {kMistral, "", true, "[TOOL_CALLS]f[ARGS]" + controls,
       "T:f({\"a\":\"line\\n\\ttab\\u0001\"})"},
  });
}

TEST(ReplyParser, XmlCalls) {
  const std::string call =
      "<tool_call>\n<function=f>\n<parameter=s>\nline \"1\"\n\n  </p> <parameter=\n</parameter>\n"
      "<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>";
  const std::string made = "T:f({\"s\":\"line \\\"1\\\"\\n\\n  </p> <parameter=\",\"i\":5})";
  const std::string bare = "<function=g>\n</function>";
  expect_parts({
      {kCoder, "", true, call, made},
      {kCoder, "", true, call + "\n" + call + "\n", made + "|" + made},
      {kCoder, "", true, "Let me see.\n\n" + call + "\nDone. \n",
       "C:Let me see.|" + made + "|C:Done. \n"},
      {kCoder, "", true, "<think>a " + bare + "</think>\n" + call, "R:a " + bare + "|" + made},
      {kCoder, "<think>\n", true, "a " + bare + "</think>\n" + call, "R:a " + bare + "|" + made},
      // The tag in front, or the one behind, left out; both, several behind one another.
      {kCoder, "", true, "a\n" + bare + "\n</tool_call> b", "C:a|T:g({})|C:b"},
      {kCoder, "", true, bare + "\n" + bare + call, "T:g({})|T:g({})|" + made},
      {kCoder, "", true, "<tool_call>" + bare, "T:g({})"},
      {kCoder, "", true, "<tool_call><function=g></tool_call>x", "T:g({})|C:x"},
      {kCoder, "", true, "<function= g ><parameter= k >1</parameter></function>",
       "T:g({\"k\":\"1\"})"},
      // </parameter> left out.
      {kCoder, "", true,
       "<function=f><parameter=s>\n1\n<parameter=i>\n2\n</function>\n</tool_call>.",
       "T:f({\"s\":\"1\",\"i\":2})|C:."},
      // No calls, to the letter.
      {kCoder, "", true, "a < b \n\n c <tool", "C:a < b \n\n c <tool"},
      {kCoder, "", true, "a <func", "C:a <func"},
      {kCoder, "", true, "a \n<tool_call>\n{\"name\": \"f\"}\n</tool_call> b",
       "C:a \n<tool_call>\n{\"name\": \"f\"}\n</tool_call> b"},
      {kCoder, "", true, "a \n<tool_call> \n<function=f>{\"a\": 1}</function>\n",
       "C:a \n<tool_call> \n<function=f>{\"a\": 1}</function>\n"},
      {kCoder, "", true, "<function=> <function=a<b> <function=a\n>",
       "C:<function=> <function=a<b> <function=a\n>"},
      {kCoder, "", true, "<function=" + std::string(300, 'a') + "></function>",
       "C:<function=" + std::string(300, 'a') + "></function>"},
      {kCoder, "", true, "<tool_call> <tool_call>\n" + bare, "C:<tool_call>|T:g({})"},
      {kCoder, "", false, call, "C:" + call},
  });
}

TEST(ReplyParser, XmlCallsThatAreCutOffOrBroken) {
  const std::string begun = "a\n<tool_call>\n<function=f>\n";
  std::vector<Case> table;
  for (const char* rest :
       {"", "<parameter=", "<parameter=s>", "<parameter=s>\nx 你\n</param", "<parameter=i>\n1",
        "<parameter=i>\n1</parameter>\n</func", "<parameter=i>1</parameter> and </function> x"}) {
    table.push_back({kCoder, "", true, begun + rest, "C:" + begun + rest});
  }
  table.push_back({kCoder, "", true, begun + "</function>\n</tool", "C:a|T:f({})|C:</tool"});
  table.push_back({kCoder, "", true,
                   begun + "<parameter=s>1</parameter><parameter=s>2</parameter><parameter=i>3</"
                           "parameter></function>",
                   "C:a|T:f({\"s\":\"1\",\"i\":3})"});
  expect_parts(table);
}

/// A value may hold the format's own marks.
TEST(ReplyParser, ValuesOfXmlCallsMayHoldMarks) {
  const auto call = [](const std::string& value) {
    return "<tool_call>\n<function=f>\n<parameter=s>\n" + value +
           "\n</parameter>\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>";
  };
  std::vector<Case> table;
  for (const std::string value :
       {"a </parameter> b", "<parameter=x>", "\n<parameter=x>\n", "</function>",
        "\n</function>\nmore", "<tool_call>", "</tool_call>", "a\n</parameter>\nb", "<function=g>",
        "</parameter", "<"}) {
    table.push_back({kCoder, "", true, call(value),
                     "T:f({\"s\":" + nlohmann::json(value).dump() + ",\"i\":5})"});
  }
  expect_parts(table);
}

/// Each value between line breaks, as the template writes it.
TEST(ReplyParser, ValuesOfXmlCallsTakeTheTypeOfTheParameter) {
  const struct {
    const char* key;
    std::string value;
    std::string json;
  } table[] = {{"s", "5", "\"5\""},
               {"s", "null", "\"null\""},
               {"s", "", "\"\""},
               {"s", "\n a\t\n", "\"\\n a\\t\\n\""},
               {"s", "你 \xF0\x9F\x98\x80", "\"你 \xF0\x9F\x98\x80\""},
               {"s", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
               {"i", "5", "5"},
               {"i", " -7 ", "-7"},
               {"i", "5.0", "\"5.0\""},
               {"i", "five", "\"five\""},
               {"i", "123456789012345678901234567890", "123456789012345678901234567890"},
               {"i", "1,\"x\":2", "\"1,\\\"x\\\":2\""},
               {"i", "null", "null"},
               {"i", "\"5\"", "\"\\\"5\\\"\""},
               {"n", "5", "5"},
               {"n", "1.50", "1.50"},
               {"n", "-2e3", "-2e3"},
               {"n", "1e999", "\"1e999\""},
               {"n", "NaN", "\"NaN\""},
               {"b", "true", "true"},
               {"b", "False", "false"},
               {"b", "yes", "\"yes\""},
               {"b", "1", "\"1\""},
               {"z", "None", "null"},
               {"z", "NULL", "null"},
               {"z", "0", "\"0\""},
               {"o", "{\"b\": [1, 2.50], \"a\": \"é\"}", "{\"b\":[1,2.50],\"a\":\"é\"}"},
               {"o", "[1]", "\"[1]\""},
               {"o", "{\"a\": }", "\"{\\\"a\\\": }\""},
               {"o", "{\"a\":1,\"a\":2}", "\"{\\\"a\\\":1,\\\"a\\\":2}\""},
               {"o", "{}}", "\"{}}\""},
               {"a", "[ ]", "[]"},
               {"a", "[\n  \"x\"\n]", "[\"x\"]"},
               {"a", "{}", "\"{}\""},
               {"any", "{\"a\": 1}", "{\"a\":1}"},
               {"any", "1.5", "1.5"},
               {"any", "true", "true"},
               {"any", "a b", "\"a b\""},
               {"any", "\"a\"", "\"\\\"a\\\"\""},
               {"loop", "[]", "[]"},
               {"ref", "{}", "{}"},
               {"ref", "5", "\"5\""},
               {"maybe", "null", "null"},
               {"maybe", "5", "\"5\""},
               {"two", "5", "5"},
               {"two", "5 ", "5"},
               {"two", " x ", "\" x \""},
               {"e", "y z", "\"y z\""},
               {"e", " x\n", "\"x\""},
               {"level", "2", "2"},
               {"level", "two", "\"two\""},
               {"date", " 2024-01-01", "\"2024-01-01\""},
               // Not named by the schema.
               {"other", "5", "\"5\""},
               {"other", "{}", "\"{}\""}};
  std::vector<Case> cases;
  for (const auto& line : table) {
    cases.push_back({kCoder, "", true,
                     "<tool_call>\n<function=f>\n<parameter=" + std::string(line.key) + ">\n" +
                         line.value + "\n</parameter>\n</function>\n</tool_call>",
                     "T:f({\"" + std::string(line.key) + "\":" + line.json + "})"});
    EXPECT_TRUE(nlohmann::json::accept(line.json)) << line.json;
  }
  expect_parts(cases);
}

/// Pseudo-random texts over the grammars' own letters, in pseudo-random pieces.
TEST(ReplyParser, ThePartsDoNotDependOnThePieces) {
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "<think>",
                                          "</think>",
                                          "[TOOL_CALLS]",
                                          "[ARGS]",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "{\"name\": \"f\", ",
                                          "\"arguments\": {",
                                          "\"parameters\": {",
                                          "\"a\": 1.5e3, ",
                                          "\"b\": \"x\\\"<\"",
                                          "\"arguments\": \"{}\"",
                                          "\"name\":\"g\"",
                                          ", ",
                                          " ",
                                          "\n",
                                          ";",
                                          ":",
                                          "\"",
                                          "\\",
                                          "f",
                                          "true",
                                          "-0",
                                          "你",
                                          "<|python_tag|>",
                                          "{\"name\": \"f\", \"parameters\": {\"k\": [1, {}]}}"};
  const std::vector<std::string> xml_words = {"<tool_call>",
                                              "</tool_call>",
                                              "<think>",
                                              "</think>",
                                              "<function=f>",
                                              "<function=f>\n",
                                              "<function=",
                                              "</function>",
                                              "\n</function>\n",
                                              "<parameter=s>",
                                              "<parameter=s>\n",
                                              "<parameter=i>",
                                              "<parameter=other>\n",
                                              "<parameter=",
                                              "</parameter>",
                                              "\n</parameter>\n",
                                              "\n",
                                              "\n\n",
                                              " ",
                                              "x",
                                              "5",
                                              "\"",
                                              "\\",
                                              "你",
                                              "\xE4",
                                              "\xBD",
                                              "<",
                                              ">",
                                              "</",
                                              "f",
                                              "null",
                                              "</para",
                                              "\n</func",
                                              "\n<parameter=o>{\"a\": [1, {}]}\n</parameter>"};
  std::uint32_t state = 1;
  const auto random = [&state](std::size_t n) {
    state = state * 1664525U + 1013904223U;
    return static_cast<std::size_t>(state >> 8U) % n;
  };
  std::size_t with_calls = 0;
  std::size_t with_xml_calls = 0;
  for (int i = 0; i < 45'000; ++i) {
    const bool xml = random(3) == 0;
    Case line{i % 3 == 0 ? kHermes : i % 3 == 1 ? kMistral : kLlama, "", true, "", ""};
    if (xml) {
      line.family = kCoder;
      if (random(2) == 0)
        line.reply = random(2) == 0 ? "<tool_call>\n<function=f>\n<parameter=s>"
                                    : "<function=f><parameter=i>";
    } else if (random(2) == 0) {
      line.reply = i % 3 == 0   ? "<tool_call>{\"name\": \"f\", \"arguments\": {"
                   : i % 3 == 1 ? random(2) == 0 ? "[TOOL_CALLS]f[ARGS]{"
                                                 : "[TOOL_CALLS] [{\"name\": \"f\", "
                                : "{\"name\": \"f\", \"parameters\": {";
    }
    const std::vector<std::string>& from = xml ? xml_words : words;
    for (std::size_t n = random(12); n > 0; --n) line.reply += from[random(from.size())];
    const std::string whole = play(line, 1'000'000);
    with_calls += !xml && whole.find("T:f(") != whole.npos ? 1 : 0;
    with_xml_calls += xml && whole.find("T:f(") != whole.npos ? 1 : 0;
    for (const std::size_t piece : {std::size_t{1}, 1 + random(6), 1 + random(40)}) {
      ASSERT_EQ(play(line, piece), whole) << line.reply << "\n in pieces of " << piece;
    }
  }
  EXPECT_GT(with_calls, 300U);  // few of such texts hold a whole call
  EXPECT_GT(with_xml_calls, 300U);
}

/// One reply, cut at any two places.
TEST(ReplyParser, AnXmlCallMayBeCutAnywhere) {
  const std::string reply =
      "Hm.\n<tool_call>\n<function=f>\n<parameter=s>\n你\n\n</parameter>\n<parameter=o>\n{\"a\": "
      "1}\n"
      "</parameter>\n</function>\n</tool_call>\n<function=g></function>\n</tool_call> <tool_call> "
      "x";
  const std::string expected =
      "C:Hm.|T:f({\"s\":\"你\\n\",\"o\":{\"a\":1}})|T:g({})|C:<tool_call> x";
  for (std::size_t first = 0; first <= reply.size(); ++first) {
    for (std::size_t second = first; second <= reply.size(); ++second) {
      const std::vector<std::string> pieces{
          reply.substr(0, first), reply.substr(first, second - first), reply.substr(second)};
      ASSERT_EQ(play({kCoder, "", true, "", ""}, pieces), expected) << first << " and " << second;
    }
  }
}

/// Nothing of a call is told before all of it is there.
TEST(ReplyParser, ACallIsReportedWhenItIsWhole) {
  const std::string reply =
      "Hm. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"long text\", \"b\": [1, "
      "2]}}\n</tool_call>";
  ReplyParser parser(ReplyGrammar::of_templates(kHermes), "", true, "42", coder_tools());
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const auto parts = parser.feed(reply.substr(i, 1));
    const bool whole = i + 1 == reply.rfind('}') + 1;
    for (const ReplyPart& part : parts) {
      EXPECT_EQ(part.kind != ReplyPart::Kind::content, whole) << i;
    }
    if (!whole) continue;
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].call.name, "f");
    EXPECT_EQ(parts[1].text, "{\"a\":\"long text\",\"b\":[1,2]}");
  }
}

TEST(JsonScanner, AcceptsWhatAParserAcceptsLetterByLetter) {
  const std::vector<std::string> good = {
      "{}", "[]", " {\"a\" : [ 1 , -0.5e+3 , 0 ] , \"b\":{\"\\u00e9\\n\":null}}",
      "[true,false,[[]],\"\"]", "[1E5,10,-7]"};
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
  const std::vector<std::string> bad = {"1",         "\"",
                                        "{a",        "{\"a\"}",
                                        "{\"a\":}",  "{\"a\":1,}",
                                        "[1,]",      "[,",
                                        "[01",       "[1.]",
                                        "[1.e",      "[-]",
                                        "[+",        "[.",
                                        "[1e]",      "[tru]",
                                        "[nulll",    "[\"\\x",
                                        "[\"\\u12g", "[\"\n",
                                        "[1 2",      "{\"a\" 1",
                                        "[}",        "{]",
                                        "[]]",       std::string(65, '[')};
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
    EXPECT_EQ(
        id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
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
  for (const char* key : {"s", "o", "any"}) {
    given = 0;
    ReplyParser xml(ReplyGrammar::of_templates(kCoder), "", true, "", coder_tools());
    count(xml.feed("<function=f><parameter=" + std::string(key) + ">"));
    for (int i = 0; i < 300'000; ++i) count(xml.feed("\n<par"));
    count(xml.feed("</parameter></function>"));
    EXPECT_GT(given, 1'500'000U) << key;
  }
}

TEST(ChatParts, AreMembersOfTheApisObjects) {
  const std::vector<ReplyPart> parts = {{ReplyPart::Kind::reasoning, "hm\n", {}, 0},
                                        {ReplyPart::Kind::content, "Say \"", {}, 0},
                                        {ReplyPart::Kind::content, "x\"", {}, 0},
                                        {ReplyPart::Kind::call, "", {"call_1", "f", ""}, 0},
                                        {ReplyPart::Kind::arguments, "{\"a\":", {}, 0},
                                        {ReplyPart::Kind::arguments, "1}", {}, 0},
                                        {ReplyPart::Kind::call, "", {"call_2", "g", ""}, 1},
                                        {ReplyPart::Kind::arguments, "{}", {}, 1}};
  EXPECT_EQ(delta_members(parts[0]), R"("reasoning_content":"hm\n")");
  EXPECT_EQ(delta_members(parts[1]), R"("content":"Say \"")");
  EXPECT_EQ(
      delta_members(parts[6]),
      R"("tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"g","arguments":""}}])");
  EXPECT_EQ(delta_members(parts[4]),
            R"("tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}])");
  EXPECT_EQ(message_members(parts),
            R"("content":"Say \"x\"","refusal":null,"reasoning_content":"hm\n","tool_calls":[)"
            R"({"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},)"
            R"({"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}])");
  EXPECT_EQ(message_members({}), R"("content":"","refusal":null)");
  EXPECT_EQ(message_members({parts[3]}).substr(0, 15), "\"content\":null,");
}

/// Where each byte of a reply stands: 'a' answer, 'b' in front of it, 'r' reasoning, 'h' header.
std::string sections(const char* family, const char* prompt, std::string_view reply) {
  ReplyParser parser(ReplyGrammar::of_templates(family), prompt, true, "42");
  std::string all;
  for (const char byte : reply) {
    const ReplySection section = parser.section();
    all += "abrh"[static_cast<std::size_t>(section)];
    parser.feed({&byte, 1});
  }
  return all;
}

TEST(ReplyParser, TellsWhereTheNextTextStands) {
  EXPECT_EQ(sections("<think></think>", "<think>\n", "hm</think>yes"), "rrrrrrrrrrbaa");
  EXPECT_EQ(sections("<think></think>", "", "<think>hm</think>\n\nyes"), "bbbbbbbrrrrrrrrrrbbbaa");
  EXPECT_EQ(sections("<think></think>", "<think>\n\n</think>\n\n", "yes"), "aaa");
  EXPECT_EQ(sections("no marks", "", "yes"), "aaa");
  const std::string reply =
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes";
  std::string wanted = std::string(30, 'h') + "rr" + std::string(7, 'r');
  wanted += std::string(reply.size() - wanted.size() - 3, 'h') + "aaa";
  EXPECT_EQ(sections("<|channel|> <|message|>", "<|start|>assistant", reply), wanted);
}

TEST(ReplyGrammar, NamesReplaceWhatTemplatesShow) {
  const auto named = [](const char* text, const char* calls, const char* reasoning) {
    return ReplyGrammar::named(text, {calls, reasoning});
  };
  const auto shown = named("<tool_call> </think>", "auto", "auto");
  ASSERT_TRUE(shown.ok());
  EXPECT_EQ(shown.value().calls, call_format("hermes"));
  EXPECT_EQ(shown.value().think_close, "</think>");
  const auto other = named("<tool_call> </think>", "xlam", "mistral");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other.value().calls->name, "xlam");
  EXPECT_EQ(other.value().think_open, "[THINK]");
  const auto none = named("<tool_call> </think>", "none", "none");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value().calls, nullptr);
  EXPECT_FALSE(none.value().reasons());
  // A reply in channels has its own calls.
  EXPECT_TRUE(named("nothing", "gpt-oss", "auto").value().channels);
  EXPECT_TRUE(named("nothing", "auto", "openai_gptoss").value().channels);
  EXPECT_EQ(named("<|channel|> <|message|>", "auto", "none").value().calls, nullptr);
  EXPECT_FALSE(named("<|channel|> <|message|>", "hermes", "auto").ok());
  for (const auto& [calls, reasoning, field] :
       {std::tuple("hermse", "auto", "tool_call_parser"), {"auto", "qwen33", "reasoning_parser"}}) {
    const auto wrong = named("", calls, reasoning);
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.status().message().find(field), std::string::npos);
    EXPECT_NE(wrong.status().message().find("known are auto, none, "), std::string::npos);
  }
}

}  // namespace
}  // namespace baton
