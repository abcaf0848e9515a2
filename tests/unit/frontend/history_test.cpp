// Conversations that models and tools wrote: what a template gets of them, by the real renderer.
#include "frontend/chat/call_history.h"
#include "templated_model.h"

namespace baton::testing {
namespace {

using Json = nlohmann::json;

/// Writes down all that a template sees of its messages.
constexpr const char* kShows =
    "{% for m in messages %}[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{% if m.tool_call_id %} #{{ m.tool_call_id }}{% endif %}] {{ m.content }}"
    "{% if m.reasoning_content %} ({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls %} {{ c.id }}:{{ c.function.name }}{{ c.function.arguments | tojson "
    "}}"
    "{% endfor %}{{ '\\n' }}{% endfor %}{# tools #}";

/// As published templates refuse: Mistral's, Gemma's, Qwen3.5's.
constexpr const char* kMistral = R"(
{%- if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for m in loop_messages %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}{% endif %}
{%- set ns.index = ns.index + 1 %}{% endif %}
{%- if m.role not in ['user', 'assistant', 'tool'] %}{{ raise_exception('Only user, assistant and tool') }}{% endif %}
{%- for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{% endfor %}
{%- if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{%- endfor %})";
constexpr const char* kGemma = R"(
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}
{%- endfor %})";
constexpr const char* kSystemFirst = R"(
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{%- endfor %})";

std::string shown(const std::string& rules, const std::string& messages) {
  static std::map<std::string, std::unique_ptr<Templated>> models;
  auto& model = models[rules];
  if (!model) model = std::make_unique<Templated>(rules + kShows);
  const auto rendered = model->render(R"({"messages":)" + messages + "}");
  return rendered.ok() ? rendered.value() : rendered.status().message();
}

std::string header_of(const std::string& messages) {
  static Templated model(kShows);
  const ParsedRequest request = good(model.finish(R"({"messages":)" + messages + "}"));
  std::string all;
  for (const auto& [name, value] : request.headers) all += name + ": " + value + "\n";
  return all;
}

constexpr const char* kCall =
    R"({"role":"assistant","content":null,"tool_calls":[{"id":"call_ABCDEFGHIJ","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]})";

TEST(History, ArgumentsThatAreNoObjectAreEmptyAndNamed) {
  for (const std::string bad : {"{", "[1]", "not json", R"({\"a\":1,\"a\":2})", "5"}) {
    const std::string messages =
        R"([{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":")" +
        bad + R"("}}]},{"role":"tool","tool_call_id":"1","content":"x"}])";
    EXPECT_EQ(shown("", messages), "[user] a\n[assistant]  1:f{}\n[tool #1] x\n") << bad;
    EXPECT_EQ(header_of(messages),
              "X-Ignored-Fields: messages[].tool_calls[].function.arguments\n");
  }
  for (const std::string none : {"\"\"", "null", "\"null\"", "\"{}\"", "{}"}) {
    const std::string messages =
        R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":)" +
        none + "}}]}]";
    EXPECT_EQ(shown("", messages), "[assistant]  1:f{}\n") << none;
    EXPECT_EQ(header_of(messages), "") << none;
  }
  EXPECT_EQ(
      shown(
          "",
          R"([{"role":"assistant","tool_calls":[{"function":{"name":"a b","arguments":{"z":1}}}]}])"),
      "[assistant]  call00000:a b{\"z\": 1}\n")
      << "names and objects of other servers";
}

TEST(History, WhatAServerAnsweredIsTakenBack) {
  EXPECT_EQ(shown("", R"([{"role":"user","content":"a"},
    {"role":"assistant","content":"","reasoning_content":"hm","reasoning":"hm","refusal":null,"annotations":[],
     "audio":null,"function_call":null,"tool_calls":[]},
    {"role":"assistant","content":null},{"role":"assistant","content":[]},{"role":"user","content":null}])"),
            "[user] a\n[assistant]  (hm)\n[assistant] \n[assistant] \n[user] \n");
  EXPECT_EQ(shown("", R"([{"role":"assistant","content":null,"refusal":"I will not"}])"),
            "[assistant] I will not\n");
}

TEST(History, LeadingInstructionsAreOneMessage) {
  EXPECT_EQ(shown("", R"([{"role":"system","content":"A"},{"role":"developer","content":"B"},
    {"role":"system","content":""},{"role":"system","content":"C"},{"role":"user","content":"x"},
    {"role":"system","content":"D"}])"),
            "[system] A\n\nB\n\nC\n[user] x\n[system] D\n");
  EXPECT_EQ(shown("{# developer #}",
                  R"([{"role":"developer","content":"A"},{"role":"system","content":"B"}])"),
            "[developer] A\n\nB\n");
}

TEST(History, FunctionsOfTheOlderApiAreTools) {
  EXPECT_EQ(shown("", R"([{"role":"user","content":"a"},
    {"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"a\":1}"}},
    {"role":"function","name":"f","content":"sunny"}])"),
            "[user] a\n[assistant]  call00000:f{\"a\": 1}\n[tool f #call00000] sunny\n");
}

TEST(History, ResultsWithoutIdsFindTheirCalls) {
  const std::string calls =
      R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}},)"
      R"({"function":{"name":"g","arguments":{}}},{"function":{"name":"f","arguments":{}}}]})";
  EXPECT_EQ(shown("", "[" + calls + R"(,{"role":"tool","name":"g","content":"1"},
      {"role":"tool","content":"2"},{"role":"tool","name":"f","content":"3"},{"role":"tool","content":"4"},)" +
                          calls + R"(,{"role":"tool","name":"other","content":"5"}])"),
            "[assistant]  call00000:f{} call00001:g{} call00002:f{}\n"
            "[tool g #call00001] 1\n[tool #call00000] 2\n[tool f #call00002] 3\n[tool] 4\n"
            "[assistant]  call00003:f{} call00004:g{} call00005:f{}\n"
            "[tool other #call00003] 5\n");
}

TEST(History, ImagesInResultsAreNamed) {
  const std::string messages =
      std::string("[") + kCall +
      R"(,{"role":"tool","tool_call_id":"call_ABCDEFGHIJ","content":[{"type":"text","text":"a "},
      {"type":"image_url","image_url":{"url":"data:x"}}]}])";
  Templated model(kShows);
  RequestContext context = lenient_context();
  auto outcome = parse_chat_completion(R"({"messages":)" + messages + "}", context, model.model());
  auto& chat = *std::get<std::unique_ptr<PendingChat>>(outcome);
  EXPECT_NE(chat.render_request().find("a [image omitted]"), std::string::npos);
  const ParsedRequest request = good(chat.finish(Result<std::string>("x"), model.model()));
  EXPECT_EQ(request.ignored_fields, std::vector<std::string>{"messages[].content[].image_url"});
  // A strict server refuses, and an image that the user shows is refused in any case.
  EXPECT_EQ(bad(model.parse(R"({"messages":)" + messages + "}"), "").param,
            "messages[1].content[1].type");
  EXPECT_EQ(bad(parse_chat_completion(
                    R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", context,
                    model.model()),
                "")
                .param,
            "messages[0].content[0].type");
}

TEST(History, CallIdsAreThoseThatTheTemplateTakes) {
  const std::string turn = std::string(R"({"role":"user","content":"a"},)") + kCall +
                           R"(,{"role":"tool","tool_call_id":"call_ABCDEFGHIJ","content":"x"})";
  EXPECT_EQ(shown(kMistral, "[" + turn + "]"),
            "[user] a\n[assistant]  call00000:f{\"a\": 1}\n[tool #call00000] x\n");
  EXPECT_EQ(shown("", "[" + turn + "]"),
            "[user] a\n[assistant]  call_ABCDEFGHIJ:f{\"a\": 1}\n[tool #call_ABCDEFGHIJ] x\n");
}

TEST(History, SystemMessagesBetweenTurnsAreTheUsersWhereTheyAreRefused) {
  const std::string messages =
      R"([{"role":"system","content":"S"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},
      {"role":"system","content":"now"},{"role":"user","content":"c"}])";
  EXPECT_EQ(shown(kSystemFirst, messages),
            "[system] S\n[user] a\n[assistant] b\n[user] now\n\nc\n");
  EXPECT_EQ(shown("", messages), "[system] S\n[user] a\n[assistant] b\n[system] now\n[user] c\n");
  EXPECT_EQ(shown(kGemma, messages), "[user] S\n\na\n[assistant] b\n[user] now\n\nc\n");
}

TEST(History, TemplatesThatInsistOnTurnsGetThem) {
  const std::string neighbours =
      R"([{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"},
      {"role":"assistant","content":"d","reasoning_content":"hm"},{"role":"user","content":"e"}])";
  EXPECT_EQ(shown(kMistral, neighbours), "[user] a\n\nb\n[assistant] c\n\nd (hm)\n[user] e\n");
  EXPECT_EQ(shown(kGemma, neighbours), "[user] a\n\nb\n[assistant] c\n\nd (hm)\n[user] e\n");
  // What a user adds to a tool's result, as Claude Code does.
  EXPECT_EQ(shown(kMistral, std::string(R"([{"role":"user","content":"a"},)") + kCall +
                                R"(,{"role":"tool","tool_call_id":"call_ABCDEFGHIJ","content":"x"},
                                   {"role":"user","content":"and?"}])"),
            "[user] a\n[assistant]  call00000:f{\"a\": 1}\n[tool #call00000] x\n\nand?\n");
  // No system and no tools.
  EXPECT_EQ(
      shown(kGemma, std::string(R"([{"role":"user","content":"a"},)") + kCall +
                        R"(,{"role":"tool","tool_call_id":"call_ABCDEFGHIJ","content":"x"}])"),
      "[user] a\n[assistant] {\"name\": \"f\", \"arguments\": {\"a\": 1}}\n[user] x\n");
  EXPECT_EQ(shown(kGemma, R"([{"role":"assistant","content":"hi"},{"role":"user","content":"a"}])"),
            "[user] \n[assistant] hi\n[user] a\n");
  EXPECT_NE(
      shown("{{ raise_exception('never') }}", neighbours).find("refuses these messages: never"),
      std::string::npos);
}

TEST(History, ManyResultsAreMatchedInTimeThatGrowsWithThem) {
  std::vector<ChatMessage> messages(1);
  messages[0].role = "assistant";
  messages[0].tool_calls.resize(1000);
  for (int i = 0; i < 200'000; ++i) messages.push_back({.role = "tool", .tool_call_id = "x"});
  for (int i = 0; i < 200'000; ++i) messages.push_back({.role = "tool"});
  match_calls(messages);
  EXPECT_EQ(messages[200'001].tool_call_id, "call00000");
  EXPECT_EQ(messages[201'000].tool_call_id, "call00999");
  EXPECT_EQ(messages.back().tool_call_id, "");
}

}  // namespace
}  // namespace baton::testing
