// Request bodies as coding agents send them: Claude Code's of /v1/messages, Codex's of
// /v1/responses, and histories that other servers wrote.
#include "api_fixture.h"
#include "frontend/chat/chat_template.h"
#include "frontend/dialects/registry.h"
#include "frontend/openai/responses_input.h"

namespace baton {
namespace {

using testing::bad;
using testing::good;
using testing::lenient_context;
using testing::ModelFolder;
using testing::tiny_model;
using Json = nlohmann::json;

const ServedModel& agent_model() {
  static const ServedModel* model = [] {
    const ModelFolder folder;
    folder.write("chat_template.jinja", R"(<think> </think> <tool_call> {"name" {{ tools }}
        {% if enable_thinking %}{% endif %} {{ messages }} {{ message.tool_calls }})");
    folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    auto* made = new ServedModel(tiny_model());
    made->chat = nullptr;
    auto loaded = ChatTemplate::load(folder.path(), *made->tokenizer);
    if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
    made->chat_template = std::move(loaded).value();
    return made;
  }();
  return *model;
}

/// What became of a body: the conversation for the template, and the request.
struct Taken {
  Json asked;
  ParsedRequest request;
  std::string ignored() const {
    std::string all;
    for (const std::string& name : request.ignored_fields) all += (all.empty() ? "" : ", ") + name;
    return all;
  }
  const Json& messages() const { return asked.at("messages"); }
};

ParseOutcome parse_at(const std::string& dialect, const std::string& path, const std::string& body,
                      const RequestContext& context) {
  for (const DialectRoute& route : dialect_named(dialect)->routes()) {
    if (path == route.path && std::holds_alternative<ParseBody>(route.answer)) {
      return std::get<ParseBody>(route.answer)(body, context, agent_model());
    }
  }
  throw std::runtime_error("no " + path);
}

Taken taken_at(const std::string& dialect, const std::string& path, const std::string& body,
               RequestContext context = lenient_context(), const std::string& prompt = "x") {
  context.path = path;
  context.max_context = 4096;
  auto outcome = parse_at(dialect, path, body, context);
  if (auto* error = std::get_if<HttpError>(&outcome)) throw std::runtime_error(error->body);
  auto& chat = *std::get<std::unique_ptr<PendingChat>>(outcome);
  Json asked = Json::parse(chat.render_request());
  return {std::move(asked), good(chat.finish(Result<std::string>(prompt), agent_model()))};
}

Taken claude(const std::string& body, RequestContext context = lenient_context()) {
  return taken_at("anthropic", "/v1/messages", body, std::move(context));
}
Taken codex(const std::string& body, const std::string& prompt = "x") {
  return taken_at("openai", "/v1/responses", body, lenient_context(), prompt);
}

std::string asked_with(const std::string& more) {
  return R"({"model":"tiny","max_tokens":32000,"messages":[{"role":"user","content":"hello"}])" +
         more + "}";
}

// ------------------------------------------------------------------------------------- Claude Code

std::string billed(const std::string& hash, const std::string& rest) {
  return asked_with(
      R"(,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.37.f3a; cc_entrypoint=cli; cch=)" +
      hash + R"(;"},)" + rest + "]");
}

TEST(ClaudeCode, TheBillingHeaderIsNoPartOfThePrompt) {
  const std::string rest =
      R"({"type":"text","text":"You are Claude Code.","cache_control":{"type":"ephemeral"}})";
  const Taken one = claude(billed("00a1b", rest)), two = claude(billed("ffffe", rest));
  EXPECT_EQ(one.messages()[0]["content"], "You are Claude Code.");
  EXPECT_EQ(one.asked, two.asked) << "so that the prefix is the same";
  EXPECT_EQ(one.ignored(), "");
  RequestContext kept = lenient_context();
  kept.drop_billing_header = false;
  EXPECT_NE(claude(billed("00a1b", rest), kept).asked, claude(billed("ffffe", rest), kept).asked);
  // As proxies write it: a line of one text. Without others, nothing is left of the prompt.
  const std::string head = R"(,"system":"x-anthropic-billing-header: cch=1;)";
  EXPECT_EQ(claude(asked_with(head + R"(\nBe brief")")).messages()[0]["content"], "Be brief");
  EXPECT_NE(claude(asked_with(head + "\"")).messages()[0]["content"], "") << "no line of its own";
  EXPECT_EQ(claude(billed("1", R"({"type":"text","text":""})")).messages().size(), 1U);
}

TEST(ClaudeCode, FieldsThatNothingIsDoneWithAreNamed) {
  const Taken taken = claude(asked_with(
      R"(,"stream":true,"metadata":{"user_id":"user_1"},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},
      "mcp_servers":[{"type":"url","url":"https://x","name":"y"}],"container":{"id":"c"},"betas":["x"])"));
  EXPECT_EQ(taken.ignored(), "container, mcp_servers, betas, context_management");
}

TEST(ClaudeCode, ToolsOfTheServerAreLeftOutByName) {
  const std::string tools =
      R"(,"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":8},)"
      R"({"name":"Bash","description":"d","input_schema":{"type":"object","properties":{"command":{"type":"string"}}}},)"
      R"({"type":"memory_20250818","name":"memory"}])";
  const Taken taken = claude(asked_with(tools));
  EXPECT_EQ(taken.ignored(), "tools[].web_search_20250305, tools[].memory_20250818");
  EXPECT_EQ(taken.asked["tools"].size(), 1U);
  EXPECT_EQ(taken.asked["tools"][0]["function"]["name"], "Bash");
  // What is left out cannot be forced; what is not can.
  EXPECT_EQ(claude(asked_with(tools + R"(,"tool_choice":{"type":"tool","name":"web_search"})"))
                .request.sampling.grammar_kind,
            GrammarKind::none);
  EXPECT_EQ(claude(asked_with(tools + R"(,"tool_choice":{"type":"tool","name":"Bash"})"))
                .request.sampling.grammar_kind,
            GrammarKind::structural_tag);
  const Taken only = claude(asked_with(
      R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"any"})"));
  EXPECT_EQ(only.ignored(), "tools[].web_search_20250305, tool_choice");
  EXPECT_TRUE(only.asked["tools"].is_null());
}

TEST(ClaudeCode, HistoriesOfOtherServersGoOn) {
  const Taken taken = claude(R"({"model":"tiny","max_tokens":9,"messages":[
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"b"}}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"EqQB"},
      {"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"x"}},
      {"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result","url":"u"}]},
      {"type":"text","text":"I look","citations":[]},
      {"type":"tool_use","id":"toolu_1","name":"Read","input":"{\"broken"}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[
      {"type":"image","source":{"type":"base64","media_type":"image/png","data":"x"}},{"type":"text","text":" seen"}]}]},
    {"role":"assistant","content":[]},
    {"role":"user","content":null}]})");
  const Json& messages = taken.messages();
  ASSERT_EQ(messages.size(), 5U) << messages.dump(1);
  EXPECT_EQ(messages[0]["content"], "ab");
  EXPECT_EQ(messages[1]["content"], "I look");
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"], Json::object());
  EXPECT_EQ(messages[2]["content"], "[image omitted] seen");
  EXPECT_EQ(messages[3]["content"], "");
  EXPECT_EQ(messages[4]["content"], "");
  EXPECT_EQ(taken.ignored(),
            "messages[].content[].server_tool_use, messages[].content[].web_search_tool_result, "
            "messages[].content[].input, messages[].content[].content[].image");
}

TEST(ClaudeCode, CachedTokensArePartOfThePrompt) {
  Taken taken = claude(asked_with(R"(,"stream":true)"));
  taken.request.reply->prompt_cached(0, 6);
  const std::string begun = taken.request.reply->begin(0, nullptr);
  const auto data =
      begun.substr(begun.find('{'), begun.find('\n', begun.find('{')) - begun.find('{'));
  const Json usage = Json::parse(data)["message"]["usage"];
  const auto prompt = static_cast<int>(taken.request.prompts[0].size());
  EXPECT_EQ(usage["cache_read_input_tokens"], std::min(6, prompt));
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>() +
                usage["cache_creation_input_tokens"].get<int>(),
            prompt);
}

/// A schema whose innermost value is inside of `levels` objects.
std::string nested_schema(int levels) {
  std::string open, close;
  for (int i = 0; i < levels; ++i) {
    open += R"({"type":"object","properties":{"a":)";
    close += "}}";
  }
  return open + R"({"type":"string"})" + close;
}

TEST(ClaudeCode, ManyToolsWithLongNamesAndDeepSchemas) {
  const auto name = [](int i) {
    const std::string digits = std::to_string(i);
    return "mcp__server__" + digits + std::string(115 - digits.size(), 'x');
  };
  const auto body = [&](int count) {
    std::string tools;
    for (int i = 0; i < count; ++i) {
      tools += std::string(i > 0 ? "," : "") + std::string(R"({"name":")") + name(i) +
               R"(","input_schema":)" + nested_schema(i == 0 ? 64 : 1) + "}";
    }
    return asked_with(R"(,"tools":[)" + tools + "]");
  };
  EXPECT_EQ(name(999).size(), 128U);
  EXPECT_EQ(claude(body(1000)).asked["tools"].size(), 1000U);
  RequestContext context = lenient_context();
  EXPECT_EQ(bad(parse_at("anthropic", "/v1/messages", body(1001), context), "").param, "tools");
  const std::string deep = nested_schema(64);
  EXPECT_EQ(
      codex(R"({"model":"tiny","input":"a","tools":[{"type":"function","name":"f","parameters":)" +
            deep + "}]}")
          .asked["tools"]
          .size(),
      1U);
  EXPECT_NE(taken_at("ollama", "/api/chat",
                     R"({"model":"tiny","messages":[{"role":"user","content":"a"}],"format":)" +
                         deep + "}")
                .request.sampling.grammar_kind,
            GrammarKind::none);
  EXPECT_NE(taken_at("openai", "/v1/chat/completions",
                     R"({"model":"tiny","messages":[{"role":"user","content":"a"}],
                     "response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" +
                         deep + "}}}")
                .request.sampling.grammar_kind,
            GrammarKind::none);
}

// ------------------------------------------------------------------------------------------- Codex

/// As codex-rs writes it (codex-api/src/common.rs, ResponsesApiRequest).
std::string codex_body(const std::string& input, const std::string& more = "") {
  return R"({"model":"tiny","instructions":"You are Codex.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"<permissions>"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"fix it"}]})" +
         input +
         R"(],"tools":[{"type":"function","name":"shell","description":"Runs","strict":false,"parameters":{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"}}},"required":["command"],"additionalProperties":false}},
    {"type":"custom","name":"apply_patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
    {"type":"web_search","external_web_access":true},{"type":"local_shell"},{"type":"image_generation","output_format":"png"},
    {"type":"namespace","name":"mcp__x__","description":"d","tools":[{"type":"function","name":"f"}]},
    {"type":"file_search","vector_store_ids":[]},{"type":"code_interpreter","container":{"type":"auto"}},{"type":"mcp","server_label":"l"}],
    "tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"effort":"medium","summary":"auto"},"store":false,"stream":true,
    "include":["reasoning.encrypted_content"],"prompt_cache_key":"01997","text":{"verbosity":"medium"})" +
         more + "}";
}

TEST(Codex, ToolsThatAreNoFunctionsAreLeftOutByName) {
  const Taken taken = codex(codex_body(""));
  EXPECT_EQ(taken.asked["tools"].size(), 1U);
  EXPECT_EQ(taken.asked["tools"][0]["function"]["name"], "shell");
  EXPECT_EQ(taken.ignored(),
            "tools[].custom, tools[].web_search, tools[].local_shell, tools[].image_generation, "
            "tools[].namespace, tools[].file_search, tools[].code_interpreter, tools[].mcp");
  ASSERT_EQ(taken.messages().size(), 2U);
  EXPECT_EQ(taken.messages()[0]["content"], "You are Codex.\n\n<permissions>");
  EXPECT_TRUE(taken.request.stream);
  const std::string only = R"({"model":"tiny","input":"a","tools":[{"type":"web_search"}])";
  for (const std::string choice :
       {R"("required")", R"({"type":"web_search"})", R"({"type":"function","name":"f"})"}) {
    const Taken free = codex(only + R"(,"tool_choice":)" + choice + "}");
    EXPECT_EQ(free.request.sampling.grammar_kind, GrammarKind::none) << choice;
    EXPECT_EQ(free.ignored().rfind("tools[].web_search, tool_choice", 0), 0U) << free.ignored();
  }
}

TEST(Codex, ItemsOfToolsThatAreNotRunAreLeftOutByName) {
  const Taken taken = codex(codex_body(R"(,
    {"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}},
    {"type":"local_shell_call","call_id":"c0","status":"completed","action":{"type":"exec","command":["ls"]}},
    {"type":"local_shell_call_output","call_id":"c0","output":"x"},
    {"type":"custom_tool_call","call_id":"c9","name":"apply_patch","input":"*** Begin Patch"},
    {"type":"custom_tool_call_output","call_id":"c9","output":"ok"},
    {"type":"image_generation_call","id":"ig","status":"completed","result":"x"},
    {"type":"item_reference","id":"msg_1"},
    {"type":"function_call","name":"shell","arguments":"{\"command\":[\"ls\"]}","call_id":"c1"},
    {"type":"function_call","name":"shell","arguments":"{\"command\":","call_id":"c2"},
    {"type":"function_call_output","call_id":"c1","output":"a.py"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"b"},{"type":"input_image","image_url":"data:x"}]},
    {"type":"message","role":"assistant","content":[]},{"type":"message","role":"user","content":null})"));
  const Json& messages = taken.messages();
  ASSERT_EQ(messages.size(), 7U) << messages.dump(1);
  EXPECT_EQ(messages[2]["tool_calls"].size(), 2U) << "calls side by side are one turn";
  EXPECT_EQ(messages[2]["tool_calls"][1]["function"]["arguments"], Json::object());
  EXPECT_EQ(messages[3]["content"], "a.py");
  EXPECT_EQ(messages[4]["content"], "b[image omitted]");
  EXPECT_EQ(messages[5]["content"], "");
  EXPECT_EQ(messages[6]["content"], "");
  EXPECT_EQ(taken.ignored(),
            "input[].web_search_call, input[].local_shell_call, input[].local_shell_call_output, "
            "input[].custom_tool_call, input[].custom_tool_call_output, "
            "input[].image_generation_call, input[].item_reference, input[].arguments, "
            "input[].output[].input_image, tools[].custom, tools[].web_search, "
            "tools[].local_shell, tools[].image_generation, tools[].namespace, "
            "tools[].file_search, tools[].code_interpreter")
      << "16 names at most";
}

TEST(Codex, ReasoningComesBackAsItWasSent) {
  const std::string thought = "hm, \"ä\"\nso";
  Taken taken = codex(R"({"model":"tiny","input":"a","include":["reasoning.encrypted_content"]})",
                      "x<think>");
  std::string bytes = taken.request.reply->begin(0, nullptr);
  bytes += taken.request.reply->text({.text = thought + "</think>yes", .token = 7});
  bytes += taken.request.reply->end(0, {FinishReason::stop, {}});
  bytes += taken.request.reply->finish({});
  const Json output = Json::parse(bytes)["output"];
  Json item = output[0];
  EXPECT_EQ(item["type"], "reasoning");
  EXPECT_EQ(responses::unpacked_reasoning(item["encrypted_content"].get<std::string>()), thought);
  for (const char* without : {"", "content", "encrypted_content"}) {
    Json input = Json::array({{{"role", "user"}, {"content", "a"}}});
    item = output[0];
    item.erase(without);
    input.push_back(item);
    input.push_back(output[1]);
    input.push_back({{"role", "user"}, {"content", "b"}});
    const Taken again = codex(Json{{"model", "tiny"}, {"input", input}}.dump());
    ASSERT_EQ(again.messages().size(), 3U) << without;
    EXPECT_EQ(again.messages()[1]["reasoning_content"], thought) << without;
    EXPECT_EQ(again.messages()[1]["content"], "yes");
    EXPECT_EQ(again.ignored(), "");
  }
  // Another server's is passed over.
  const Taken foreign = codex(
      R"({"model":"tiny","input":[{"type":"reasoning","summary":[],"encrypted_content":"gAAAAABo"},
      {"role":"user","content":"a"}]})");
  EXPECT_EQ(foreign.messages().size(), 1U);
  // Who does not ask for it gets none.
  const Taken plain = codex(R"({"model":"tiny","input":"a"})", "x<think>");
  plain.request.reply->text({.text = thought + "</think>yes", .token = 7});
  plain.request.reply->end(0, {FinishReason::stop, {}});
  EXPECT_FALSE(
      Json::parse(plain.request.reply->finish({}))["output"][0].contains("encrypted_content"));
}

TEST(Codex, PackedReasoningIsBase64) {
  for (const std::string text : {"", "a", "ab", "abc", "\xff\x01x"}) {
    EXPECT_EQ(responses::unpacked_reasoning(responses::packed_reasoning(text)), text);
  }
  for (const std::string bad_text : {"a", "====", "YQ==", "YmF0b24xOg=", "%%%%"}) {
    EXPECT_FALSE(responses::unpacked_reasoning(bad_text).has_value()) << bad_text;
  }
}

// ------------------------------------------------------------------------------------------ Ollama

TEST(OllamaHistory, CallsHaveNoIds) {
  const Taken taken = taken_at("ollama", "/api/chat", R"({"model":"tiny","messages":[
    {"role":"user","content":"a"},
    {"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"z":1}}},{"function":{"name":"g","arguments":"{"}}]},
    {"role":"tool","tool_name":"g","content":"rain","images":["aGk="]},{"role":"tool","content":"sun"}]})");
  const Json& messages = taken.messages();
  EXPECT_EQ(messages[1]["tool_calls"][0]["id"], "call00000");
  EXPECT_EQ(messages[1]["tool_calls"][1]["function"]["arguments"], Json::object());
  EXPECT_EQ(messages[2]["tool_call_id"], "call00001");
  EXPECT_EQ(messages[2]["content"], "rain[image omitted]");
  EXPECT_EQ(messages[3]["tool_call_id"], "call00000");
  EXPECT_EQ(taken.ignored(), "messages[].tool_calls[].function.arguments, messages[].images");
}

}  // namespace
}  // namespace baton
