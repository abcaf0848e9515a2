// The APIs whose bodies are translated into the OpenAI API's: Anthropic's, /v1/responses, Ollama's.
// What is asked for, what is refused and how, and replies letter by letter, as the published
// documents of these APIs have them.
#include <map>
#include <sstream>

#include "api_fixture.h"
#include "frontend/chat/chat_template.h"
#include "frontend/dialects/ollama_reply.h"
#include "frontend/dialects/registry.h"

namespace baton {
namespace {

using testing::bad;
using testing::good;
using testing::lenient_context;
using testing::ModelFolder;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

/// A model whose chats a template writes down, with reasoning, a switch for it, and calls.
const ServedModel& templated_model() {
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

RequestContext context_of(const std::string& path, RequestContext context = small_context()) {
  context.path = path;
  context.received = 5 * kSecond;
  context.wall_offset = 1'700'000'000 * kSecond;
  return context;
}

ParseOutcome parsed(const std::string& dialect, const std::string& path, const std::string& body,
                    const ServedModel& model, const RequestContext& context) {
  for (const DialectRoute& route : dialect_named(dialect)->routes()) {
    if (path == route.path && std::holds_alternative<ParseBody>(route.answer)) {
      return std::get<ParseBody>(route.answer)(body, context, model);
    }
  }
  throw std::runtime_error(dialect + " has no " + path);
}

struct Door {
  std::string dialect, path;
  const ServedModel& model = templated_model();

  ParseOutcome parse(const std::string& body) const {
    return parsed(dialect, path, body, model, context_of(path));
  }
  /// The conversation as the template's process gets it.
  Json rendered(const std::string& body) const {
    auto outcome = parse(body);
    if (auto* error = std::get_if<HttpError>(&outcome)) throw std::runtime_error(error->body);
    std::string text = std::get<std::unique_ptr<PendingChat>>(outcome)->render_request();
    return Json::parse(text.substr(text.find('{')));
  }
  ParseOutcome finished(const std::string& body, const std::string& prompt = "hello") const {
    auto outcome = parse(body);
    if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
      return (*chat)->finish(Result<std::string>(prompt), model);
    }
    return outcome;
  }
  ParsedRequest take(const std::string& body, const std::string& prompt = "hello") const {
    return good(finished(body, prompt));
  }
  /// Status and body as they go out.
  void refuses(const std::string& body, int status, const std::string& part) const {
    const HttpError error = dialect_named(dialect)->shape(bad(finished(body), body));
    EXPECT_EQ(error.status, status) << body;
    EXPECT_NE(error.body.find(part), std::string::npos) << body << "\n  says " << error.body;
    EXPECT_TRUE(Json::accept(error.body)) << error.body;
  }
};

const Door kMessages{"anthropic", "/v1/messages"};
const Door kCount{"anthropic", "/v1/messages/count_tokens"};
const Door kPlainMessages{"anthropic", "/v1/messages", tiny_model()};
const Door kResponses{"openai", "/v1/responses"};
const Door kPlainResponses{"openai", "/v1/responses", tiny_model()};
const Door kChat{"ollama", "/api/chat"};
const Door kPlainChat{"ollama", "/api/chat", tiny_model()};
const Door kGenerate{"ollama", "/api/generate", tiny_model()};

/// What a client gets when the model says `pieces`, a token each, a second apart.
std::string reply(ParsedRequest request, const std::vector<std::string>& pieces,
                  const Ending& ending = {FinishReason::stop, {}}) {
  std::string bytes = request.reply->begin(0, nullptr);
  TimeNs time = 6 * kSecond;
  for (const std::string& piece : pieces) {
    bytes += request.reply->text({.text = piece, .token = 7, .time = time});
    time += kSecond;
  }
  bytes += request.reply->end(0, ending);
  return bytes +
         request.reply->finish({.prompt_tokens = 9,
                                .completion_tokens = static_cast<std::uint32_t>(pieces.size()),
                                .cached_tokens = 4,
                                .reasoning_tokens = 2});
}

/// `text` without its first line break: for texts that are written down as blocks.
std::string block(const std::string& text) { return text.substr(1); }

std::string message(const std::string& more = "") {
  return R"({"model":"tiny","max_tokens":50,"messages":[{"role":"user","content":"hello"}])" +
         more + "}";
}
std::string response(const std::string& more = "") {
  return R"({"model":"tiny","input":"hello")" + more + "}";
}
std::string chat(const std::string& more = "") {
  return R"({"model":"tiny","messages":[{"role":"user","content":"hello"}])" + more + "}";
}
constexpr const char* kAnthropicTools =
    R"(,"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"z":{},"a":{}}}}])";
constexpr const char* kResponsesTools =
    R"(,"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"z":{},"a":{}}}}])";
constexpr const char* kOllamaTools =
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
const std::vector<std::string> kThoughtAndCall = {
    "why", " not</think>", "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":", " 1}}",
    "\n</tool_call>"};

// --------------------------------------------------------------------------------------- Anthropic

TEST(Messages, AStreamLetterByLetter) {
  EXPECT_EQ(
      reply(kPlainMessages.take(message(R"(,"stream":true)")), {"Hello", " you"}),
      block(R"(
event: message_start
data: {"type":"message_start","message":{"id":"msg_42","type":"message","role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":)" +
            std::to_string(kPlainMessages.take(message()).prompts[0].size()) +
            R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" you"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

)"));
}

TEST(Messages, ThoughtsAndCallsInAStream) {
  const std::string stream =
      reply(kMessages.take(message(R"(,"stream":true)" + std::string(kAnthropicTools)), "x<think>"),
            kThoughtAndCall);
  const std::string id = stream.substr(stream.find("call_"), 14);
  EXPECT_EQ(stream.substr(stream.find("event: content_block_start")),
            block(R"(
event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"why"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":" not"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":")" +
                  id +
                  R"(","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

)"));
  const Json whole =
      Json::parse(reply(kMessages.take(message(kAnthropicTools), "x<think>"), kThoughtAndCall));
  EXPECT_EQ(
      whole["content"], Json::parse(R"([{"type":"thinking","thinking":"why not","signature":""},
      {"type":"tool_use","id":")" + id +
                                    R"(","name":"f","input":{"a":1}}])"));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  const Json silent = Json::parse(reply(
      kMessages.take(
          message(R"(,"thinking":{"type":"enabled","budget_tokens":1024,"display":"omitted"})"),
          "x<think>"),
      {"why</think>yes"}));
  EXPECT_EQ(silent["content"][0]["thinking"], "");
  EXPECT_EQ(silent["content"][1]["text"], "yes");
}

TEST(Messages, WholeReplies) {
  EXPECT_EQ(
      reply(kPlainMessages.take(message()), {"Hello"}),
      R"({"id":"msg_42","type":"message","role":"assistant","model":"tiny","content":[{"type":"text","text":"Hello"}],)"
      R"("stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":0,)"
      R"("cache_read_input_tokens":4,"output_tokens":1}})");
  const auto ending = [](const std::string& fields, const Ending& how) {
    const Json said = Json::parse(reply(kPlainMessages.take(message(fields)), {"Hello"}, how));
    return said["stop_reason"].get<std::string>() + " " + said["stop_sequence"].dump();
  };
  const std::string stops = R"(,"stop_sequences":["END","x"])";
  EXPECT_EQ(ending(stops, {FinishReason::stop, "END"}), R"(stop_sequence "END")");
  EXPECT_EQ(ending(stops, {FinishReason::stop, "User:"}), "end_turn null") << "the format's own";
  EXPECT_EQ(ending(stops, {FinishReason::stop, {}}), "end_turn null");
  EXPECT_EQ(ending("", {FinishReason::length, {}}), "max_tokens null");
  // Cut off inside a call: no call was said.
  const Json cut = Json::parse(reply(kMessages.take(message(kAnthropicTools)),
                                     {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b"},
                                     {FinishReason::length, {}}));
  EXPECT_EQ(cut["content"].size(), 1U);
  EXPECT_EQ(cut["content"][0]["type"], "text");
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
}

TEST(Messages, FailuresAreEvents) {
  ParsedRequest request = kPlainMessages.take(message(R"(,"stream":true)"));
  EXPECT_EQ(request.reply->fail(Status(ErrorCode::unavailable, "gone")),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
            "\"message\":\"gone\"}}\n\n");
}

TEST(Messages, BlocksBecomeMessages) {
  const Json asked = kMessages.rendered(R"({"model":"tiny","max_tokens":5,
    "system":[{"type":"text","text":"Be","cache_control":{"type":"ephemeral"}},{"type":"text","text":" brief"}],
    "messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b","citations":null}]},
     {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"x"},
       {"type":"text","text":"I look"},{"type":"tool_use","id":"t1","name":"f","input":{"z":1,"a":[2]}}]},
     {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"sunny"}],"is_error":false},
       {"type":"text","text":"and now?"}]}]})" +
                                        std::string());
  const Json messages = asked["messages"];
  ASSERT_EQ(messages.size(), 5U) << asked.dump(1);
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"], "Be brief");
  EXPECT_EQ(messages[1]["content"], "ab");
  EXPECT_EQ(messages[2]["content"], "I look");
  EXPECT_EQ(messages[2]["reasoning_content"], "hm");
  EXPECT_EQ(messages[2]["tool_calls"][0]["id"], "t1");
  EXPECT_NE(messages[2].dump().find("z"), std::string::npos);
  EXPECT_EQ(messages[3]["role"], "tool");
  EXPECT_EQ(messages[3]["tool_call_id"], "t1");
  EXPECT_EQ(messages[3]["content"], "sunny");
  EXPECT_EQ(messages[4]["content"], "and now?");
}

TEST(Messages, ToolsKeepTheirOrderAndAreForced) {
  const std::string tools = kAnthropicTools;
  const auto asked = kMessages.rendered(message(tools));
  EXPECT_EQ(asked["tools"][0]["function"]["name"], "f");
  EXPECT_EQ(asked["tools"][0]["function"]["description"], "d");
  for (const char* choice : {R"({"type":"any"})", R"({"type":"tool","name":"f"})",
                             R"({"type":"any","disable_parallel_tool_use":true})"}) {
    const ParsedRequest request = kMessages.take(message(tools + R"(,"tool_choice":)" + choice));
    EXPECT_EQ(request.sampling.grammar_kind, GrammarKind::structural_tag);
    EXPECT_EQ(request.grammar_field, "tool_choice");
    EXPECT_LT(request.sampling.grammar.find(R"("z")"), request.sampling.grammar.find(R"("a")"));
  }
  for (const char* choice : {R"({"type":"auto"})", R"({"type":"none"})"}) {
    const ParsedRequest request = kMessages.take(message(tools + R"(,"tool_choice":)" + choice));
    EXPECT_EQ(request.sampling.grammar_kind, GrammarKind::none);
  }
  // The client asked for a call of its choice: that is a reason to stop here.
  const Json named = Json::parse(
      reply(kMessages.take(message(tools + R"(,"tool_choice":{"type":"tool","name":"f"})"), "x"),
            {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"}));
  EXPECT_EQ(named["stop_reason"], "tool_use");
}

TEST(Messages, FieldsOfSampling) {
  const ParsedRequest request = kPlainMessages.take(message(
      R"(,"temperature":0.5,"top_p":0.9,"top_k":5,"stop_sequences":["a","b"],"metadata":{"user_id":"u"},"service_tier":"auto")"));
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.max_tokens, 50U);
  EXPECT_EQ(std::vector(request.stop.begin(), request.stop.begin() + 2),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(request.stream);
  // Agents ask for more than a small context has: they get what it leaves.
  const ParsedRequest much = kPlainMessages.take(
      R"({"model":"tiny","max_tokens":32000,"messages":[{"role":"user","content":"hello"}]})");
  EXPECT_EQ(much.sampling.max_tokens, 256U - much.prompts[0].size());
  const ParsedRequest schema = kPlainMessages.take(message(
      R"(,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"z":{},"a":{}}}}})"));
  EXPECT_EQ(schema.sampling.grammar, R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(schema.grammar_field, "output_config.format.schema");
}

TEST(Messages, ThinkingIsSwitched) {
  EXPECT_EQ(kMessages.rendered(message(
                R"(,"thinking":{"type":"enabled","budget_tokens":2048})"))["variables"]
                                                                          ["enable_thinking"],
            true);
  EXPECT_EQ(kMessages.rendered(
                message(R"(,"thinking":{"type":"disabled"})"))["variables"]["enable_thinking"],
            false);
  EXPECT_FALSE(
      kMessages.rendered(message(R"(,"thinking":{"type":"adaptive"})"))["variables"].contains(
          "enable_thinking"));
  EXPECT_EQ(kMessages.rendered(
                message(R"(,"output_config":{"effort":"high"})"))["variables"]["enable_thinking"],
            true);
  EXPECT_EQ(kMessages.rendered(
                message(R"(,"thinking":{"type":"disabled"},"output_config":{"effort":"high"})"))
                ["variables"]["enable_thinking"],
            false);
}

TEST(Messages, ALastMessageOfTheAssistantIsGoneOnWith) {
  const std::string body =
      R"({"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":"It is"}]})";
  EXPECT_EQ(kMessages.rendered(body)["continue_final_message"], true);
  kPlainMessages.refuses(body, 400, "which needs a chat template");
}

TEST(Messages, Refusals) {
  const auto with = [](const std::string& content) {
    return R"({"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":)" + content +
           "}]}";
  };
  const std::string error = R"({"type":"error","error":{"type":"invalid_request_error","message":)";
  kMessages.refuses(
      with(R"([{"type":"image","source":{"type":"base64","media_type":"image/png","data":"x"}}])"),
      400,
      error +
          R"("'messages[0].content[0].type' 'image' is not supported here; this model reads only text"}})");
  kMessages.refuses(
      with(R"([{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}])"), 400,
      "'messages[0].content[0].content[0].type' 'image'");
  kMessages.refuses(R"({"model":"tiny","messages":[{"role":"user","content":"a"}]})", 400,
                    "'max_tokens' is missing");
  kMessages.refuses(R"({"model":"tiny","max_tokens":0,"messages":[]})", 400, "'max_tokens' ");
  kMessages.refuses(R"({"model":"tiny","max_tokens":1,"messages":[]})", 400,
                    "'messages' must not be empty");
  kMessages.refuses(
      R"({"model":"other","max_tokens":1,"messages":[{"role":"user","content":"a"}]})", 404,
      R"("type":"not_found_error","message":"the model 'other')");
  kMessages.refuses(message(R"(,"stop_sequences":"x")"), 400, "'stop_sequences' must be an array");
  kMessages.refuses(message(R"(,"stop_sequences":[""])"), 400,
                    "'stop_sequences[0]' must not be empty");
  kMessages.refuses(message(R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}])"),
                    400, "'tools[0].type' ");
  kMessages.refuses(message(R"(,"tools":[{"name":"f"}])"), 400,
                    "'tools[0].input_schema' is missing");
  kMessages.refuses(
      message(R"(,"tool_choice":{"type":"tool","name":"g"})" + std::string(kAnthropicTools)), 400,
      "'tool_choice.name' ");
  kMessages.refuses(message(R"(,"tool_choice":{"type":"any"})"), 400,
                    "'tool_choice' forces a call");
  kMessages.refuses(message(R"(,"thinking":{"type":"much"})"), 400, "'thinking.type' ");
  kMessages.refuses(message(R"(,"mcp_servers":[{"url":"x"}])"), 400, "'mcp_servers' ");
  kMessages.refuses(
      message(R"(,"thread":{"type":"create"})"), 400,
      R"(,"details":{"error_code":"thread_unsupported_request","unsupported":["thread"]}}})");
  kMessages.refuses(message(R"(,"colour":1)"), 400, "'colour'");
  kPlainMessages.refuses(message(kAnthropicTools), 400, "'tools' is not supported");
  kPlainMessages.refuses(with(R"([{"type":"tool_result","tool_use_id":"t","content":"x"}])"), 400,
                         "'messages[0].content[0].type' ");
  kMessages.refuses(
      R"({"model":"tiny","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}]})",
      400, "whose results must follow");
}

TEST(Messages, UnknownFieldsAreIgnoredAndTold) {
  const auto outcome =
      parsed("anthropic", "/v1/messages", message(R"(,"colour":1,"context_management":{})"),
             tiny_model(), context_of("/v1/messages", lenient_context()));
  const auto& request = std::get<ParsedRequest>(outcome);
  EXPECT_EQ(request.ignored_fields, (std::vector<std::string>{"colour", "context_management"}));
}

TEST(Messages, WhatTheModelCannotDoIsToldByItsName) {
  const auto outcome = parsed("anthropic", "/v1/messages",
                              message(R"(,"colour":1,"output_config":{"effort":"high"})"),
                              tiny_model(), context_of("/v1/messages", lenient_context()));
  const auto& request = std::get<ParsedRequest>(outcome);
  EXPECT_EQ(request.ignored_fields, (std::vector<std::string>{"colour", "output_config.effort"}));
  EXPECT_EQ(request.headers.front().second, "colour, output_config.effort");
}

TEST(Messages, TooLongAPromptIsToldInTheWordsThatClientsKnow) {
  std::string words;
  for (int i = 0; i < 300; ++i) words += "hello ";
  kPlainMessages.refuses(
      R"({"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":")" + words + "\"}]}",
      400, "\"message\":\"prompt is too long: ");
}

TEST(Messages, CountingTokensIsWhatAReplyTells) {
  const std::string body =
      R"({"model":"tiny","system":"Be brief","messages":[{"role":"user","content":"hello"}]})";
  const Door count{"anthropic", "/v1/messages/count_tokens", tiny_model()};
  const std::string asked = R"({"max_tokens":7,)" + body.substr(1);
  EXPECT_EQ(
      std::get<Answer>(count.parse(body)).body,
      "{\"input_tokens\":" + std::to_string(kPlainMessages.take(asked).prompts[0].size()) + "}");
  EXPECT_EQ(std::get<Answer>(kCount.finished(body, "hello world")).body,
            "{\"input_tokens\":" +
                std::to_string(kMessages.take(asked, "hello world").prompts[0].size()) + "}");
  kCount.refuses(R"({"model":"other","messages":[{"role":"user","content":"a"}]})", 404,
                 "not_found_error");
}

// --------------------------------------------------------------------------------------- responses

/// The events of a stream, by name, and what their data holds besides type and number.
std::string outline(const std::string& stream) {
  std::string told, name;
  std::istringstream lines(stream);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("event: ", 0) == 0) name = line.substr(7);
    if (line.rfind("data: ", 0) != 0) continue;
    Json data = Json::parse(line.substr(6));
    EXPECT_EQ(data["type"], name);
    EXPECT_EQ(data["sequence_number"], number++);
    data.erase("type");
    data.erase("sequence_number");
    if (data.contains("response")) {
      const Json response = data["response"];
      data = {{"status", response["status"]}, {"output", response["output"]}};
    }
    told += name + " " + data.dump() + "\n";
  }
  return told;
}

TEST(Responses, AStreamLetterByLetter) {
  EXPECT_EQ(outline(reply(kPlainResponses.take(response(R"(,"stream":true)")), {"Hello", " you"})),
            block(R"(
response.created {"output":[],"status":"in_progress"}
response.in_progress {"output":[],"status":"in_progress"}
response.output_item.added {"item":{"content":[],"id":"msg_42_0","role":"assistant","status":"in_progress","type":"message"},"output_index":0}
response.content_part.added {"content_index":0,"item_id":"msg_42_0","output_index":0,"part":{"annotations":[],"logprobs":[],"text":"","type":"output_text"}}
response.output_text.delta {"content_index":0,"delta":"Hello","item_id":"msg_42_0","logprobs":[],"output_index":0}
response.output_text.delta {"content_index":0,"delta":" you","item_id":"msg_42_0","logprobs":[],"output_index":0}
response.output_text.done {"content_index":0,"item_id":"msg_42_0","logprobs":[],"output_index":0,"text":"Hello you"}
response.content_part.done {"content_index":0,"item_id":"msg_42_0","output_index":0,"part":{"annotations":[],"logprobs":[],"text":"Hello you","type":"output_text"}}
response.output_item.done {"item":{"content":[{"annotations":[],"logprobs":[],"text":"Hello you","type":"output_text"}],"id":"msg_42_0","role":"assistant","status":"completed","type":"message"},"output_index":0}
response.completed {"output":[{"content":[{"annotations":[],"logprobs":[],"text":"Hello you","type":"output_text"}],"id":"msg_42_0","role":"assistant","status":"completed","type":"message"}],"status":"completed"}
)"));
}

TEST(Responses, ThoughtsAndCallsInAStream) {
  const std::string stream = reply(
      kResponses.take(response(R"(,"stream":true)" + std::string(kResponsesTools)), "x<think>"),
      kThoughtAndCall);
  const std::string id = stream.substr(stream.find("call_", stream.find("\"call_id\"") + 10), 14);
  const std::string told = outline(stream);
  EXPECT_EQ(
      told.substr(told.find("response.output_item.added"),
                  told.find("response.completed") - told.find("response.output_item.added")),
      block(
          R"(
response.output_item.added {"item":{"content":[],"id":"rs_42_0","status":"in_progress","summary":[],"type":"reasoning"},"output_index":0}
response.content_part.added {"content_index":0,"item_id":"rs_42_0","output_index":0,"part":{"text":"","type":"reasoning_text"}}
response.reasoning_text.delta {"content_index":0,"delta":"why","item_id":"rs_42_0","output_index":0}
response.reasoning_text.delta {"content_index":0,"delta":" not","item_id":"rs_42_0","output_index":0}
response.reasoning_text.done {"content_index":0,"item_id":"rs_42_0","output_index":0,"text":"why not"}
response.content_part.done {"content_index":0,"item_id":"rs_42_0","output_index":0,"part":{"text":"why not","type":"reasoning_text"}}
response.output_item.done {"item":{"content":[{"text":"why not","type":"reasoning_text"}],"id":"rs_42_0","status":"completed","summary":[],"type":"reasoning"},"output_index":0}
response.output_item.added {"item":{"arguments":"","call_id":")" +
          id +
          R"(","id":"fc_42_1","name":"f","status":"in_progress","type":"function_call"},"output_index":1}
response.function_call_arguments.delta {"delta":"{\"a\":1}","item_id":"fc_42_1","output_index":1}
response.function_call_arguments.done {"arguments":"{\"a\":1}","item_id":"fc_42_1","name":"f","output_index":1}
response.output_item.done {"item":{"arguments":"{\"a\":1}","call_id":")" +
          id +
          R"(","id":"fc_42_1","name":"f","status":"completed","type":"function_call"},"output_index":1}
)"));
  const Json whole =
      Json::parse(reply(kResponses.take(response(kResponsesTools), "x<think>"), kThoughtAndCall));
  EXPECT_EQ(whole["output"].size(), 2U);
  EXPECT_EQ(whole["output"][1]["arguments"], "{\"a\":1}");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
}

TEST(Responses, WholeRepliesRepeatTheRequest) {
  const Json told = Json::parse(reply(
      kPlainResponses.take(response(
          R"(,"instructions":"Be brief","temperature":0.5,"max_output_tokens":3,"store":true,"metadata":{"k":"v"})")),
      {"Hello"}, {FinishReason::length, {}}));
  EXPECT_EQ(told["id"], "resp_42");
  EXPECT_EQ(told["object"], "response");
  EXPECT_EQ(told["created_at"], 1700000000);
  EXPECT_EQ(told["status"], "incomplete");
  EXPECT_EQ(told["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(told["output"][0]["status"], "incomplete");
  EXPECT_EQ(told["instructions"], "Be brief");
  EXPECT_EQ(told["temperature"], 0.5);
  EXPECT_EQ(told["max_output_tokens"], 3);
  EXPECT_EQ(told["store"], false);
  EXPECT_EQ(told["metadata"]["k"], "v");
  EXPECT_EQ(told["tool_choice"], "auto");
  EXPECT_EQ(
      told["usage"],
      Json::parse(R"({"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":1,
      "output_tokens_details":{"reasoning_tokens":2},"total_tokens":10})"));
  const Json empty = Json::parse(reply(kPlainResponses.take(response()), {}));
  EXPECT_EQ(empty["output"][0]["content"][0]["text"], "");
}

TEST(Responses, FailuresAreEvents) {
  ParsedRequest request = kPlainResponses.take(response(R"(,"stream":true)"));
  const std::string event = request.reply->fail(Status(ErrorCode::worker_crashes, "it died"));
  EXPECT_EQ(event.rfind("event: response.failed\n", 0), 0U);
  const Json failed = Json::parse(event.substr(event.find('{')))["response"];
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["error"], Json::parse(R"({"code":"server_error","message":"it died"})"));
}

TEST(Responses, ItemsBecomeMessages) {
  const Json messages = kResponses.rendered(R"({"model":"tiny","instructions":"Be brief","input":[
    {"role":"user","content":"a"},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","id":"m","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I look","annotations":[],"logprobs":[]}]},
    {"type":"function_call","id":"fc","call_id":"c1","name":"f","arguments":"{\"z\":1}","status":"completed"},
    {"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"sunny"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"rain"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"b"}]}]})")["messages"];
  ASSERT_EQ(messages.size(), 6U) << messages.dump(1);
  EXPECT_EQ(messages[0]["content"], "Be brief");
  EXPECT_EQ(messages[2]["reasoning_content"], "hm");
  EXPECT_EQ(messages[2]["content"], "I look");
  EXPECT_EQ(messages[2]["tool_calls"].size(), 2U);
  EXPECT_EQ(messages[3]["tool_call_id"], "c1");
  EXPECT_EQ(messages[4]["content"], "rain");
  EXPECT_EQ(messages[5]["content"], "b");
}

TEST(Responses, FieldsOfTheRequest) {
  const ParsedRequest schema = kPlainResponses.take(response(
      R"(,"text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{"type":"object","properties":{"z":{},"a":{}}}}})"));
  EXPECT_EQ(schema.sampling.grammar, R"(all {"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(schema.grammar_field, "text.format.schema");
  EXPECT_EQ(kPlainResponses.take(response(R"(,"max_output_tokens":5)")).sampling.max_tokens, 5U);
  EXPECT_EQ(
      kResponses.rendered(response(
          R"(,"reasoning":{"effort":"none","summary":"auto"})"))["variables"]["enable_thinking"],
      false);
  const ParsedRequest forced = kResponses.take(
      response(std::string(kResponsesTools) + R"(,"tool_choice":{"type":"function","name":"f"})"));
  EXPECT_EQ(forced.sampling.grammar_kind, GrammarKind::structural_tag);
}

TEST(Responses, Refusals) {
  const auto refuses = [](const std::string& body, const std::string& param,
                          const std::string& part) {
    const HttpError error = bad(kResponses.finished(body), body);
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_EQ(error.param, param) << body;
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
  };
  refuses(response(R"(,"previous_response_id":"resp_1")"), "previous_response_id",
          "keeps no responses");
  refuses(response(R"(,"conversation":"c")"), "conversation", "keeps no responses");
  refuses(response(R"(,"background":true)"), "background", "");
  refuses(response(R"(,"truncation":"auto")"), "truncation", "");
  refuses(response(R"(,"include":["message.output_text.logprobs"])"), "include",
          "log probabilities");
  refuses(response(R"(,"tools":[{"type":"web_search"}])"), "tools[0].type", "'web_search'");
  refuses(response(R"(,"tool_choice":"required")"), "tool_choice", "no 'tools'");
  refuses(response(R"(,"max_output_tokens":0)"), "max_output_tokens", "");
  refuses(response(R"(,"min_tokens":1000)"), "input", "'min_tokens' is 1000");
  refuses(response(R"(,"text":{"format":{"type":"xml"}})"), "text.format.type", "");
  refuses(response(R"(,"temperature":3)"), "temperature", "");
  refuses(R"({"model":"tiny"})", "input", "is missing");
  refuses(R"({"model":"tiny","input":[]})", "input", "must not be empty");
  refuses(
      R"({"model":"tiny","input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})",
      "input[0].content[0].type", "only text");
  refuses(R"({"model":"tiny","input":[{"type":"item_reference","id":"x"}]})", "input[0].type",
          "keeps no items");
  EXPECT_EQ(
      bad(kPlainResponses.parse(
              R"({"model":"tiny","input":[{"type":"function_call_output","call_id":"x","output":"y"}]})"),
          "")
          .param,
      "input[0].type");
  EXPECT_EQ(bad(kPlainResponses.parse(response(R"(,"model2":1)")), "").param, "model2");
  EXPECT_EQ(bad(kPlainResponses.parse(R"({"model":"other","input":"a"})"), "").status, 404);
}

// ------------------------------------------------------------------------------------------ Ollama

TEST(Ollama, LinesOfAChat) {
  ParsedRequest request = kPlainChat.take(chat());
  EXPECT_TRUE(request.stream) << "unless it is told not to";
  EXPECT_EQ(request.content_type, "application/x-ndjson");
  EXPECT_EQ(reply(std::move(request), {"Hello", " you"}), block(R"(
{"model":"tiny","created_at":"2023-11-14T22:13:26.000000000Z","message":{"role":"assistant","content":"Hello"},"done":false}
{"model":"tiny","created_at":"2023-11-14T22:13:27.000000000Z","message":{"role":"assistant","content":" you"},"done":false}
{"model":"tiny","created_at":"2023-11-14T22:13:27.000000000Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":2000000000,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":1000000000,"eval_count":2,"eval_duration":1000000000}
)"));
}

TEST(Ollama, WholeReplies) {
  EXPECT_EQ(
      reply(kGenerate.take(R"({"model":"tiny:latest","prompt":"hello","stream":false})"),
            {"Hello", " you"}, {FinishReason::length, {}}),
      R"({"model":"tiny","created_at":"2023-11-14T22:13:27.000000000Z","response":"Hello you","done":true,"done_reason":"length",)"
      R"("total_duration":2000000000,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":1000000000,)"
      R"("eval_count":2,"eval_duration":1000000000})");
}

TEST(Ollama, ThoughtsAndCalls) {
  const std::string lines = reply(kChat.take(chat(kOllamaTools), "x<think>"), kThoughtAndCall);
  std::vector<Json> told;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) told.push_back(Json::parse(line));
  ASSERT_EQ(told.size(), 4U) << lines;
  EXPECT_EQ(told[0]["message"]["thinking"], "why");
  EXPECT_EQ(told[1]["message"]["thinking"], " not");
  EXPECT_EQ(told[2]["message"]["tool_calls"][0]["function"],
            Json::parse(R"({"index":0,"name":"f","arguments":{"a":1}})"));
  EXPECT_EQ(told[3]["done"], true);
  const Json whole = Json::parse(
      reply(kChat.take(chat(R"(,"stream":false)" + std::string(kOllamaTools)), "x<think>"),
            kThoughtAndCall));
  EXPECT_EQ(whole["message"]["thinking"], "why not");
  EXPECT_EQ(whole["message"]["tool_calls"].size(), 1U);
}

TEST(Ollama, OptionsAndDefaults) {
  const SamplingParams usual = kPlainChat.take(chat()).sampling;
  EXPECT_EQ(usual.temperature, 0.8F);
  EXPECT_EQ(usual.top_k, 40);
  EXPECT_EQ(usual.top_p, 0.9F);
  EXPECT_EQ(usual.max_tokens, 64U);
  const ParsedRequest request = kPlainChat.take(chat(
      R"(,"options":{"num_predict":7,"temperature":0,"top_k":3,"top_p":0.5,"seed":11,"stop":["x"],"repeat_penalty":1.2,"num_ctx":4096},"keep_alive":"5m")"));
  const SamplingParams& s = request.sampling;
  EXPECT_EQ(s.max_tokens, 7U);
  EXPECT_EQ(s.temperature, 0.0F);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.top_p, 0.5F);
  EXPECT_EQ(s.seed, 11U);
  EXPECT_TRUE(request.seed_given);
  EXPECT_EQ(s.repetition_penalty, 1.2F);
  EXPECT_EQ(request.stop.front(), "x");
  EXPECT_FALSE(kPlainChat.take(chat(R"(,"options":{"seed":-1})")).seed_given);
  const ParsedRequest endless = kPlainChat.take(chat(R"(,"options":{"num_predict":-1})"));
  EXPECT_EQ(endless.sampling.max_tokens, 256U - endless.prompts[0].size());
  EXPECT_EQ(kPlainChat.take(chat(R"(,"format":"json")")).sampling.grammar_kind,
            GrammarKind::json_schema);
  EXPECT_EQ(kPlainChat.take(chat(R"(,"format":{"type":"object","properties":{"z":{},"a":{}}})"))
                .sampling.grammar,
            R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(kChat.rendered(chat(R"(,"think":false)"))["variables"]["enable_thinking"], false);
}

TEST(Ollama, MessagesAndPrompts) {
  const Json messages = kChat.rendered(R"({"model":"tiny","messages":[{"role":"user","content":"a"},
    {"role":"assistant","content":"","thinking":"hm","tool_calls":[{"function":{"name":"f","arguments":{"z":1}}}]},
    {"role":"tool","content":"sunny","tool_name":"f"}]})")["messages"];
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(messages[2]["content"], "sunny");
  // With the model's format around it, or as it is.
  const std::string body = R"({"model":"tiny","prompt":"hello")";
  EXPECT_GT(kGenerate.take(body + "}").prompts[0].size(),
            kGenerate.take(body + R"(,"raw":true})").prompts[0].size());
}

TEST(Ollama, NothingAskedIsAnsweredAtOnce) {
  const auto said = [](const Door& door, const std::string& body) {
    return Json::parse(std::get<Answer>(door.parse(body)).body)["done_reason"];
  };
  EXPECT_EQ(said(kGenerate, R"({"model":"tiny"})"), "load");
  EXPECT_EQ(said(kPlainChat, R"({"model":"tiny","messages":[]})"), "load");
  EXPECT_EQ(said(kGenerate, R"({"model":"tiny","keep_alive":0})"), "unload");
}

TEST(Ollama, Refusals) {
  kPlainChat.refuses(R"({"model":"other","messages":[]})", 404, R"({"error":"the model 'other')");
  kPlainChat.refuses(R"({"messages":[]})", 400, R"({"error":"'model' is missing"})");
  kPlainChat.refuses(chat(R"(,"options":{"temperature":-1})"), 400, "'options.temperature' ");
  kPlainChat.refuses(chat(R"(,"options":{"num_predict":0})"), 400, "'options.num_predict' ");
  kPlainChat.refuses(chat(R"(,"options":{"mirostat":2})"), 400, "'options.mirostat' ");
  kPlainChat.refuses(chat(R"(,"format":"xml")"), 400, "'format' ");
  kPlainChat.refuses(chat(kOllamaTools), 400, "'tools' is not supported");
  kPlainChat.refuses(
      R"({"model":"tiny","messages":[{"role":"user","content":"a","images":["aGk="]}]})", 400,
      "'messages[0].images' ");
  kGenerate.refuses(R"({"model":"tiny","prompt":"a","template":"{{x}}"})", 400, "'template' ");
  kGenerate.refuses(R"({"model":"tiny","prompt":"a","context":[1]})", 400, "'context' ");
  const Door embed{"ollama", "/api/embed", tiny_model()};
  embed.refuses(R"({"model":"tiny","input":"a"})", 400, "wants one that makes embeddings");
}

TEST(Ollama, WhatIsTheModelLike) {
  const Door show{"ollama", "/api/show"};
  const Json told = Json::parse(std::get<Answer>(show.parse(R"({"model":"tiny"})")).body);
  EXPECT_EQ(told["capabilities"], Json::parse(R"(["completion","tools","thinking"])"));
  EXPECT_EQ(told["model_info"]["baton.context_length"], 256);
  show.refuses(R"({"model":"other"})", 404, "other");
  PageFacts facts;
  facts.created = 1'700'000'000;
  facts.version = "0.1.0";
  for (const DialectRoute& route : dialect_named("ollama")->routes()) {
    const auto* page = std::get_if<MakePage>(&route.answer);
    if (page == nullptr) continue;
    const Json body = Json::parse(std::get<Answer>((*page)(facts, tiny_model())).body);
    if (body.contains("models"))
      EXPECT_EQ(body["models"][0]["model"], "tiny");
    else
      EXPECT_EQ(body["baton"], "0.1.0");
  }
  EXPECT_EQ(iso_time(951782400 * kSecond + 5), "2000-02-29T00:00:00.000000005Z");
}

TEST(Openai, VectorsAndScoresOfAModelThatWritesTextAreRefusedInOneSentence) {
  const std::string why = "generates text here (model_task: generate); this request wants one that";
  const Door embeddings{"openai", "/v1/embeddings"}, rerank{"openai", "/v1/rerank"};
  embeddings.refuses(R"({"model":"tiny","input":"a"})", 400, why);
  rerank.refuses(R"({"model":"tiny","query":"a","documents":["b"]})", 400, why);
}

}  // namespace
}  // namespace baton
