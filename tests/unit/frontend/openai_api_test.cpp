#include "frontend/openai/openai_api.h"

#include <random>

#include "api_fixture.h"

namespace baton {
namespace {

using testing::bad;
using testing::completion;
using testing::error_of;
using testing::expect_refused;
using testing::good;
using testing::good_completion;
using testing::lenient_context;
using testing::Refusal;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

ParseOutcome chat(const std::string& body) {
  return parse_chat_completion(body, small_context(), tiny_model());
}
/// A completion of "hello" with one more field.
ParseOutcome with(const std::string& field) {
  return completion(R"({"prompt":"hello",)" + field + "}");
}
ParseOutcome chat_with(const std::string& field) {
  return chat(R"({"messages":[{"role":"user","content":"hello"}],)" + field + "}");
}

TEST(Completion, Defaults) {
  const auto request = good(completion(R"({"model":"tiny","prompt":"hello"})"));
  const Tokenizer& t = *tiny_model().tokenizer;
  EXPECT_EQ(request.prompts.front(), t.encode("hello", true));
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.top_p, 1.0F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_tokens, 0U);
  EXPECT_EQ(request.sampling.max_tokens, 64U);
  EXPECT_EQ(request.sampling.stop_ids, t.eos_ids());
  EXPECT_FALSE(request.seed_given);
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(request.stop.empty());
  EXPECT_FALSE(request.include_stop_in_output);
  EXPECT_EQ(request.timeout, 600 * kSecond);
  EXPECT_TRUE(request.headers.empty());
  EXPECT_NE(request.reply, nullptr);
}

TEST(Completion, EveryParameter) {
  const auto request = good(with(
      R"("temperature":0.5,"top_p":0.25,"top_k":7,"seed":-3,"stop":["a","bc"],"max_tokens":9,
         "min_tokens":4,"stop_token_ids":[9,9,8],"include_stop_str_in_output":true,"timeout_s":1.5,
         "stream":true,"stream_options":{"include_usage":true},"n":1)"));
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.25F);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_TRUE(request.seed_given);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(request.sampling.max_tokens, 9U);
  EXPECT_EQ(request.sampling.min_tokens, 4U);
  EXPECT_EQ(request.sampling.stop_ids, (std::vector<Token>{2, 8, 9}));
  EXPECT_TRUE(request.include_stop_in_output);
  EXPECT_EQ(request.timeout, 1500 * kMillisecond);
  EXPECT_TRUE(request.stream);
}

TEST(Completion, ValuesAtTheBorders) {
  EXPECT_EQ(good(with(R"("temperature":0)")).sampling.temperature, 0.0F);
  EXPECT_EQ(good(with(R"("temperature":1e-300)")).sampling.temperature, 0.0F);
  EXPECT_EQ(good(with(R"("temperature":2)")).sampling.temperature, 2.0F);
  EXPECT_GT(good(with(R"("top_p":1e-300)")).sampling.top_p, 0.0F);
  EXPECT_EQ(good(with(R"("top_k":-1)")).sampling.top_k, 0);
  EXPECT_EQ(good(with(R"("top_k":2147483647)")).sampling.top_k,
            static_cast<int>(tiny_model().tokenizer->vocab_size()));
  EXPECT_EQ(good(with(R"("seed":9223372036854775807)")).sampling.seed, 9223372036854775807ULL);
  EXPECT_EQ(good(with(R"("seed":-9223372036854775808)")).sampling.seed, 9223372036854775808ULL);
  EXPECT_TRUE(good(with(R"("ignore_eos":true)")).sampling.stop_ids.empty());
  EXPECT_EQ(good(with(R"("ignore_eos":true,"stop_token_ids":[7])")).sampling.stop_ids,
            std::vector<Token>{7});
  EXPECT_EQ(good(with(R"("min_tokens":100)")).sampling.max_tokens, 100U);
  EXPECT_GT(good(with(R"("timeout_s":1e-300)")).timeout, 0);
}

TEST(Completion, PromptForms) {
  const auto& t = *tiny_model().tokenizer;
  EXPECT_EQ(good(completion(R"({"prompt":[5,6,7]})")).prompts.front(),
            (std::vector<Token>{5, 6, 7}));
  EXPECT_EQ(good(completion(R"({"prompt":[[5,6]]})")).prompts.front(), (std::vector<Token>{5, 6}));
  EXPECT_EQ(good(completion(R"({"prompt":["hello"]})")).prompts.front(), t.encode("hello", true));
  EXPECT_EQ(good(completion(R"({"prompt":""})")).prompts.front(), std::vector<Token>{t.bos()});
}

TEST(Completion, Priorities) {
  EXPECT_EQ(good(with(R"("seed":1)")).priority, 0);
  EXPECT_EQ(good(with(R"("priority":-100)")).priority, -100);
  EXPECT_EQ(good(with(R"("priority":100)")).priority, 100);
  expect_refused({R"({"prompt":"a","priority":101})", 400, "priority", "between -100 and 100"},
                 completion);
  expect_refused({R"({"prompt":"a","priority":0.5})", 400, "priority", ""}, completion);
}

TEST(Completion, ASuffixNeedsAModelThatFillsIn) {
  for (const char* markers : {",<fim_prefix>,<fim_suffix>,<fim_middle>", ",[SUFFIX],[PREFIX]"}) {
    testing::ModelOptions options;
    options.more_markers = markers;
    const testing::ModelFolder folder(options);
    ServedModel model;
    model.name = "fill";
    model.tokenizer = testing::load_tokenizer(folder);
    const Tokenizer& t = *model.tokenizer;
    const auto parse = [&](const std::string& body) {
      return parse_completion(body, small_context(), model);
    };
    const auto mark = [&](const char* text) {
      std::size_t length = 0;
      return t.special_at(text, &length);
    };
    const auto plain = [&](const char* text) { return t.encode_plain(text, true); };
    // A mark in a text is only letters.
    const std::string body = R"({"prompt":"the <fim_middle>","suffix":"end [PREFIX]"})";
    std::vector<Token> wanted{t.bos()};
    const auto add = [&](const std::vector<Token>& ids) {
      wanted.insert(wanted.end(), ids.begin(), ids.end());
    };
    if (markers[1] == '<') {
      add({mark("<fim_prefix>")});
      add(plain("the <fim_middle>"));
      add({mark("<fim_suffix>")});
      add(plain("end [PREFIX]"));
      add({mark("<fim_middle>")});
    } else {
      add({mark("[SUFFIX]")});
      add(plain("end [PREFIX]"));
      add({mark("[PREFIX]")});
      add(plain("the <fim_middle>"));
    }
    EXPECT_EQ(good(parse(body)).prompts.front(), wanted);
    EXPECT_EQ(good(parse(R"({"prompt":"x","suffix":""})")).prompts.front(), t.encode("x", true));
    const auto ids = good(parse(R"({"prompt":[5,6],"suffix":"x","add_special_tokens":false})"));
    EXPECT_EQ(ids.prompts.front().size(), 2 + plain("x").size() + (markers[1] == '<' ? 3U : 2U));
    expect_refused({R"({"prompt":"a","suffix":"x","echo":true})", 400, "suffix", "'echo'"}, parse);
    expect_refused({R"({"prompt":"a","suffix":5})", 400, "suffix", "must be a string"}, parse);
    expect_refused({R"({"prompt":"a","suffix":")" + std::string(100'000, '\'') + "\"}", 400,
                    "prompt", "more than 512 tokens"},
                   parse);
  }
}

TEST(Completion, LengthsFollowTheContext) {
  const std::string ids = "[" + std::string("5") + [] {
    std::string more;
    for (int i = 1; i < 200; ++i) more += ",5";
    return more;
  }() + "]";
  EXPECT_EQ(good(completion(R"({"prompt":)" + ids + "}")).sampling.max_tokens, 56U);
  EXPECT_EQ(good(completion(R"({"max_tokens":56,"prompt":)" + ids + "}")).sampling.max_tokens, 56U);
  const auto headers_of = [&](const std::string& most) {
    const ParsedRequest request = good(completion("{" + most + R"("prompt":)" + ids + "}"));
    EXPECT_EQ(request.sampling.max_tokens, 56U) << most;
    return request.headers;
  };
  EXPECT_TRUE(headers_of("").empty());
  EXPECT_TRUE(headers_of(R"("max_tokens":56,)").empty());
  const std::vector<std::pair<std::string, std::string>> clamped = {
      {"X-Baton-Max-Tokens", "clamped from 57 to 56"}};
  EXPECT_EQ(headers_of(R"("max_tokens":57,)"), clamped);
  expect_refused({R"({"min_tokens":57,"prompt":)" + ids + "}", 400, "prompt",
                  "the prompt has 200 tokens and 'min_tokens' is 57: 257 tokens together; this "
                  "model's context holds 256"},
                 completion);
}

TEST(Completion, WithoutALimitTheContextOrTheConfigurationSetsIt) {
  ServedModel model = tiny_model();
  const auto most = [&](const std::string& fields) {
    return good(parse_completion(R"({"prompt":[5,6])" + fields + "}", small_context(), model))
        .sampling.max_tokens;
  };
  EXPECT_EQ(most(""), 64U);
  EXPECT_EQ(most(R"(,"min_tokens":70)"), 70U);
  EXPECT_EQ(most(R"(,"max_tokens":100)"), 100U);
  model.default_max_tokens = 0;
  EXPECT_EQ(most(""), 254U);
  // A search reserves what its beams may come to: it has a limit all the same.
  RequestContext wide = small_context();
  wide.max_context = 4096;
  const auto search =
      good(parse_completion(R"({"prompt":[5,6],"use_beam_search":true,"n":2})", wide, model));
  EXPECT_EQ(search.sampling.max_tokens, 512U);
}

TEST(Completion, Refuses) {
  const std::string many_ids = [] {
    std::string list = "5";
    for (int i = 0; i < 255; ++i) list += ",5";
    return "[" + list + "]";
  }();
  const std::string stops = [] {
    std::string list = "\"x\"";
    for (int i = 0; i < 16; ++i) list += ",\"x\"";
    return "[" + list + "]";
  }();
  const Refusal table[] = {
      {"", 400, "", "the body is empty"},
      {"{", 400, "", "not valid JSON"},
      {"[]", 400, "", "must be a JSON object"},
      {"{\"prompt\":\"\xFF\"}", 400, "", "UTF-8"},
      {"{}", 400, "prompt", "'prompt' is missing"},
      {R"({"prompt":null})", 400, "prompt", "'prompt' is missing"},
      {R"({"prompt":3})", 400, "prompt",
       "'prompt' must be a string or an array of token ids, not an integer"},
      {R"({"prompt":{}})", 400, "prompt", "not an object"},
      {R"({"prompt":[]})", 400, "prompt", "the prompt is empty"},
      {R"({"prompt":[null]})", 400, "prompt[0]", "not null"},
      {R"({"prompt":[1,"a"]})", 400, "prompt[1]", "must be a token id"},
      {R"({"prompt":[1,-1]})", 400, "prompt[1]", "between 0 and"},
      {R"({"prompt":[1,18446744073709551615]})", 400, "prompt[1]", "between 0 and"},
      {R"({"prompt":[1,99999999]})", 400, "prompt[1]", "between 0 and"},
      {R"({"prompt":[1.5]})", 400, "prompt[0]", "between 0 and"},
      {R"({"prompt":)" + many_ids + "}", 400, "prompt",
       "the prompt has 256 tokens; this model's context holds 256"},
      {R"({"prompt":")" + std::string(400, '\'') + "\"}", 400, "prompt",
       " tokens; this model's context holds 256"},
      {R"({"prompt":")" + std::string(1'000'000, '\'') + "\"}", 400, "prompt",
       "more than 512 tokens"},
      {R"({"prompt":"a","model":"other"})", 404, "model",
       "the model 'other' does not exist here; this server has 'tiny'"},
      {R"({"prompt":"a","model":5})", 400, "model", "'model' must be a string, not an integer"},
      {R"({"prompt":"a","colour":1})", 400, "colour", "unknown field 'colour'"},
      {R"({"prompt":"a","messages":[]})", 400, "messages",
       "is not supported; only null is accepted"},
      {R"({"prompt":"a","tools":[{}]})", 400, "tools", "is not supported; only an empty value"},
      {R"({"prompt":"a","max_completion_tokens":1})", 400, "max_completion_tokens",
       "unknown field"},
      {R"({"prompt":"a","max_tokens":0})", 400, "max_tokens", "between 1 and 2147483647"},
      {R"({"prompt":"a","max_tokens":-5})", 400, "max_tokens", "between 1 and 2147483647"},
      {R"({"prompt":"a","max_tokens":1.5})", 400, "max_tokens", "must be an integer, not a number"},
      {R"({"prompt":"a","max_tokens":"5"})", 400, "max_tokens", "must be an integer, not a string"},
      {R"({"prompt":"a","max_tokens":true})", 400, "max_tokens",
       "must be an integer, not a boolean"},
      {R"({"prompt":"a","max_tokens":99999999999999999999999})", 400, "max_tokens",
       "between 1 and"},
      {R"({"prompt":"a","min_tokens":2147483647})", 400, "prompt",
       "this model's context holds 256"},
      {R"({"prompt":"a","max_tokens":3,"min_tokens":4})", 400, "min_tokens",
       "is 4, above 'max_tokens', which is 3"},
      {R"({"prompt":"a","min_tokens":-1})", 400, "min_tokens", "between 0 and"},
      {R"({"prompt":"a","temperature":-0.1})", 400, "temperature", "at least 0 and at most 2"},
      {R"({"prompt":"a","temperature":2.1})", 400, "temperature", "at least 0 and at most 2"},
      {R"({"prompt":"a","temperature":"hot"})", 400, "temperature",
       "must be a number, not a string"},
      {R"({"prompt":"a","top_p":0})", 400, "top_p", "above 0 and at most 1"},
      {R"({"prompt":"a","top_p":1.01})", 400, "top_p", "above 0 and at most 1"},
      {R"({"prompt":"a","top_k":-2})", 400, "top_k", "between -1 and"},
      {R"({"prompt":"a","seed":9223372036854775808})", 400, "seed", "between -9223372036854775808"},
      {R"({"prompt":"a","seed":1.0})", 400, "seed", "must be an integer"},
      {R"({"prompt":"a","stop":["x",""]})", 400, "stop[1]", "must not be empty"},
      {R"({"prompt":"a","stop":["x",2]})", 400, "stop[1]", "must be a string, not an integer"},
      {R"({"prompt":"a","stop":5})", 400, "stop", "a string or an array of strings"},
      {R"({"prompt":"a","stop":)" + stops + "}", 400, "stop", "at most 16 strings, not 17"},
      {R"({"prompt":"a","stop":")" + std::string(257, 'x') + "\"}", 400, "stop",
       "at most 256 bytes long, not 257"},
      {R"({"prompt":"a","stop_token_ids":5})", 400, "stop_token_ids", "must be an array"},
      {R"({"prompt":"a","stop_token_ids":[-1]})", 400, "stop_token_ids[0]", "must be a token id"},
      {R"({"prompt":"a","stream":"yes"})", 400, "stream", "must be true or false, not a string"},
      {R"({"prompt":"a","json_schema":"{}"})", 400, "json_schema", "is not supported"},
      {R"({"prompt":"a","stream":true,"stream_options":5})", 400, "stream_options",
       "must be an object"},
      {R"({"prompt":"a","stream":true,"stream_options":{"x":1}})", 400, "stream_options.x",
       "unknown field"},
      {R"({"prompt":"a","stream":true,"stream_options":{"continuous_usage_stats":true}})", 400,
       "stream_options.continuous_usage_stats", "only allowed when 'include_usage' is true"},
      {R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})", 400,
       "stream_options.include_usage", "must be true or false"},
      {R"({"prompt":"a","n":0})", 400, "n", "between 1 and 128"},
      {R"({"prompt":"a","timeout_s":0})", 400, "timeout_s", "above 0 and at most 3600"},
      {R"({"prompt":"a","timeout_s":3601})", 400, "timeout_s", "above 0 and at most 3600"},
      {R"({"prompt":"a","suffix":"x"})", 400, "suffix", "is not supported"},
      {R"({"prompt":"a","prompt":"b"})", 400, "", "the key 'prompt' is written twice"},
  };
  for (const Refusal& line : table) expect_refused(line, completion);
}

TEST(Completion, Grammars) {
  const struct {
    const char* fields;
    GrammarKind kind;
    std::string text;
  } table[] = {
      {R"("response_format":{"type":"text"})", GrammarKind::none, ""},
      {R"("guided_json":null)", GrammarKind::none, ""},
      {R"("response_format":{"type":"json_object"})", GrammarKind::json_schema,
       R"({"type":"object"})"},
      // The order of a schema's keys is the order in which they will come.
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,)"
       R"("schema":{"type":"object","properties":{"z":{"type":"string"},"a":{}}}}})",
       GrammarKind::json_schema,
       R"(all {"type":"object","properties":{"z":{"type":"string"},"a":{}}})"},
      {R"("guided_json":{"z":1,"a":2})", GrammarKind::json_schema, R"(all {"z":1,"a":2})"},
      {R"("guided_json":"{\"z\": 1}")", GrammarKind::json_schema, R"(all {"z": 1})"},
      {R"("guided_json":"{}","schema_objects":"open","schema_unenforceable":"report")",
       GrammarKind::json_schema, "open {}"},
      {R"("structured_outputs":{"json":{}},"schema_objects":"open","schema_unenforceable":"refuse")",
       GrammarKind::json_schema, "all open {}"},
      {R"("schema_objects":"open")", GrammarKind::none, ""},
      {R"("guided_regex":"a+")", GrammarKind::regex, "a+"},
      {R"("guided_grammar":"root ::= \"a\"")", GrammarKind::ebnf, "root ::= \"a\""},
      {R"("guided_choice":["a\"b","c\\d","e\nf"])", GrammarKind::ebnf,
       R"(root ::= "a\"b" | "c\\d" | "e\u000af")"},
      {R"("structured_outputs":{"json":{"z":1,"a":2}})", GrammarKind::json_schema,
       R"({"z":1,"a":2})"},
      {R"("structured_outputs":{"json_object":true})", GrammarKind::json_schema,
       R"({"type":"object"})"},
      {R"("structured_outputs":{"regex":"b"})", GrammarKind::regex, "b"},
      {R"("structured_outputs":{"choice":["x"]})", GrammarKind::ebnf, R"(root ::= "x")"},
      {R"("response_format":{"type":"structural_tag","format":{"type":"any_text"}})",
       GrammarKind::structural_tag, R"({"type":"structural_tag","format":{"type":"any_text"}})"},
  };
  for (const auto& line : table) {
    const auto request = good(completion(std::string(R"({"prompt":"a",)") + line.fields + "}"));
    EXPECT_EQ(request.sampling.grammar_kind, line.kind) << line.fields;
    EXPECT_EQ(request.sampling.grammar, line.text) << line.fields;
    EXPECT_EQ(request.grammar_field.empty(), line.kind == GrammarKind::none) << line.fields;
  }
}

/// The server's options, and what goes before them.
TEST(Completion, SchemasAreTakenAsTheOptionsSay) {
  RequestContext context = small_context();
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{})";
  const struct {
    bool open;
    bool refuse;
    std::string fields;
    const char* text;
  } table[] = {
      {true, true, format + "}}", "all open {}"},
      {true, false, format + "}}", "open {}"},
      {true, false, format + R"(,"strict":true}})", "all {}"},
      {true, false, format + R"(,"strict":true}},"schema_objects":"open")", "all open {}"},
      {true, true, format + R"(,"strict":true}},"schema_unenforceable":"report")", "{}"},
      {true, true, format + R"(}},"schema_objects":"closed","schema_unenforceable":"report")",
       "{}"},
      {true, false, R"("guided_json":{})", "all open {}"},
      {false, true, R"("structured_outputs":{"structural_tag":"{}"})", "all {}"},
      {true, true, R"("guided_regex":"a")", "a"},
  };
  for (const auto& line : table) {
    context.schemas = {.open = line.open, .refuse = line.refuse};
    const auto request =
        good(parse_completion(R"({"prompt":"a",)" + line.fields + "}", context, tiny_model()));
    EXPECT_EQ(request.sampling.grammar, line.text) << line.fields;
  }
}

TEST(Completion, RefusesGrammars) {
  const Refusal table[] = {
      {R"({"prompt":"a","response_format":"json"})", 400, "response_format", "must be an object"},
      {R"({"prompt":"a","response_format":{"type":"xml"}})", 400, "response_format.type",
       "must be \"text\""},
      {R"({"prompt":"a","response_format":{"type":"json_schema"}})", 400,
       "response_format.json_schema", "is missing"},
      {R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"x"}}})", 400,
       "response_format.json_schema.schema", "is missing"},
      {R"({"prompt":"a","response_format":{"type":"json_object","colour":1}})", 400,
       "response_format.colour", "unknown field"},
      {R"({"prompt":"a","guided_regex":""})", 400, "guided_regex", "must not be empty"},
      {R"({"prompt":"a","guided_regex":5})", 400, "guided_regex", "must be a string"},
      {R"({"prompt":"a","guided_json":"{"})", 400, "guided_json", "must hold a JSON Schema"},
      {R"({"prompt":"a","guided_choice":[]})", 400, "guided_choice", "1 to 1024"},
      {R"({"prompt":"a","guided_choice":["a",""]})", 400, "guided_choice[1]", "not empty"},
      {R"({"prompt":"a","structured_outputs":{"xml":1}})", 400, "structured_outputs.xml",
       "unknown field"},
      {R"({"prompt":"a","guided_regex":"a","guided_choice":["b"]})", 400, "guided_choice",
       "contradicts 'guided_regex'"},
      {R"({"prompt":"a","guided_regex":"a","ignore_eos":true})", 400, "ignore_eos",
       "contradicts 'guided_regex'"},
      {R"({"prompt":"a","guided_regex":")" + std::string(70'000, 'a') + "\"}", 400, "guided_regex",
       "at most 65536 bytes"},
  };
  for (const Refusal& line : table) expect_refused(line, completion);
}

TEST(Completion, HarmlessFieldsAreIgnored) {
  const auto request = good(with(
      R"("user":"me","metadata":{"a":[1]},"store":true,"service_tier":"auto","frequency_penalty":0,
         "presence_penalty":0.0,"repetition_penalty":1.0,"logit_bias":{},"logprobs":false,"best_of":1,
         "echo":false,"suffix":null,"response_format":{"type":"text"},"min_p":0,"priority":null)"));
  EXPECT_EQ(request.prompts.front(), tiny_model().tokenizer->encode("hello", true));
}

TEST(Chat, RendersWithTheFormatAndItsStops) {
  const auto& t = *tiny_model().tokenizer;
  std::size_t length = 0;
  const Token end = t.special_at("<|end|>", &length);
  const auto request = good(chat(
      R"({"model":"tiny","messages":[{"role":"system","content":"be kind"},
          {"role":"user","content":[{"type":"text","text":"hel"},{"type":"text","text":"lo"}],"name":"x"},
          {"role":"assistant","content":null,"refusal":null,"tool_calls":[]},
          {"role":"user","content":"你好"}],"max_completion_tokens":5,"stop":"X"})"));
  const auto wanted = tiny_model().chat->render(
      {{"system", "be kind"}, {"user", "hello"}, {"assistant", ""}, {"user", "你好"}}, t, 1000);
  EXPECT_EQ(request.prompts.front(), wanted.value().ids);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"X", "User:"}));
  EXPECT_EQ(request.sampling.stop_ids, (std::vector<Token>{2, end}));
  EXPECT_EQ(request.sampling.max_tokens, 5U);
  const auto endless = good(chat_with(R"("ignore_eos":true)"));
  EXPECT_TRUE(endless.sampling.stop_ids.empty());
  EXPECT_TRUE(endless.stop.empty());
}

// As the openai client sends a message of an assistant back.
TEST(Chat, WhatAnAssistantRefusedWithIsText) {
  const auto ids = [](const std::string& content) {
    return good(chat(R"({"messages":[{"role":"user","content":[{"type":"text","text":"hello",)"
                     R"("prompt_cache_breakpoint":{"mode":"explicit"}}]},)"
                     R"({"role":"assistant","content":)" +
                     content + R"(},{"role":"user","content":"x"}]})"))
        .prompts.front();
  };
  EXPECT_EQ(ids(R"([{"type":"refusal","refusal":"hello"}])"), ids("\"hello\""));
}

/// The names in X-Ignored-Fields, and none in the log that the header lacks.
std::string ignored(const ParsedRequest& request) {
  std::string header, log;
  for (const auto& [name, value] : request.headers) {
    if (name == kIgnoredFieldsHeader) header = value;
  }
  for (const std::string& name : request.ignored_fields) log += (log.empty() ? "" : ", ") + name;
  EXPECT_EQ(header, log);
  return header;
}
ParsedRequest lenient(const std::string& body, decltype(&parse_completion) parse) {
  return good(parse(body, lenient_context(), tiny_model()));
}

TEST(IgnoredFields, AreNamedOnceAndNothingElseChanges) {
  const auto plain = lenient(R"({"prompt":"a","max_tokens":5})", &parse_completion);
  EXPECT_EQ(ignored(plain), "");
  EXPECT_TRUE(plain.headers.empty());
  const auto some =
      lenient(R"({"prompt":"a","max_tokens":5,"zebra":1,"colour":[1],"nothing":null,"mirostat":2,)"
              R"("stream_options":{"x":1}})",
              &parse_completion);
  EXPECT_EQ(ignored(some), "stream_options.x, colour, mirostat, zebra");
  EXPECT_EQ(some.prompts, plain.prompts);
  EXPECT_EQ(some.sampling.max_tokens, 5U);
  const auto chat = lenient(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x","y":1}],"extra":1},)"
      R"({"role":"user","content":"x","extra":2}]})",
      &parse_chat_completion);
  EXPECT_EQ(ignored(chat), "messages[].content[].y, messages[].extra");
}

TEST(IgnoredFields, NoBodyWritesTheHeader) {
  std::string body = R"({"prompt":"a","a\r\nSet-Cookie: b":1,"c,d":1,"\u00e9":1,")" +
                     std::string(500, 'x') + "\":1";
  for (int i = 0; i < 100; ++i) body += ",\"f" + std::to_string(i) + "\":1";
  const auto request = lenient(body + "}", &parse_completion);
  const std::string header = ignored(request);
  EXPECT_EQ(request.ignored_fields.size(), IgnoredFields::kMost);
  EXPECT_LT(header.size(), 1200U);
  for (const char c : header) EXPECT_TRUE(c >= ' ' && c < 0x7F) << static_cast<int>(c);
  EXPECT_NE(header.find("a??Set-Cookie:?b, c?d, "), std::string::npos) << header;
}

TEST(IgnoredFields, WhatChangesTheReplyStaysAnError) {
  for (const char* fields :
       {R"("n":0)", R"("tools":[{}])", R"("regex":"a+")", R"("ebnf":"root ::= \"a\"")",
        R"("json_schema":"{}")", R"("grammar":"x")",
        R"("response_format":{"type":"json_object","schema":{}})", R"("lora_path":"x")",
        R"("return_hidden_states":true)", R"("structured_outputs":{"xml":1})",
        R"("max_tokens":"5")"}) {
    const std::string body = std::string(R"({"prompt":"a",)") + fields + "}";
    bad(parse_completion(body, lenient_context(), tiny_model()), body);
  }
  for (const char* fields : {R"("tools":[{"type":"function"}])", R"("tool_choice":"required")",
                             R"("functions":[{"name":"f"}])", R"("modalities":["audio"])"}) {
    const std::string body =
        std::string(R"({"messages":[{"role":"user","content":"x"}],)") + fields + "}";
    bad(parse_chat_completion(body, lenient_context(), tiny_model()), body);
  }
}

/// What sglang-router 0.3.2 and vllm-router 0.1.17 put into every request.
TEST(IgnoredFields, RoutersFieldsAreKnown) {
  EXPECT_EQ(
      ignored(good(chat(
          R"({"messages":[{"role":"user","content":"x"}],"model":"tiny","logprobs":false,)"
          R"("max_completion_tokens":5,"stream":false,"no_stop_trim":false,"ignore_eos":false,)"
          R"("continue_final_message":false,"skip_special_tokens":true,"separate_reasoning":true,)"
          R"("stream_reasoning":true,"return_hidden_states":false})"))),
      "");
  const auto kept = good_completion(
      R"({"prompt":"a","echo":false,"no_stop_trim":true,"ignore_eos":false,"skip_special_tokens":true,)"
      R"("return_hidden_states":false,"rid":"x","stop":"b"})");
  EXPECT_TRUE(kept.include_stop_in_output) << "SGLang's name of include_stop_str_in_output";
}

TEST(Chat, WhatClientsSendWithoutNeedIsTaken) {
  const auto strict = good(chat(
      R"({"messages":[{"id":"m1","role":"user","content":[{"type":"text","text":"hello","cache_control":)"
      R"({"type":"ephemeral"}}],"cache_control":{"type":"ephemeral"}},{"role":"assistant","content":"x",)"
      R"("reasoning_content":"because","refusal":"","annotations":[]},{"role":"user","content":"x"}],"cache_control":{},"stop":"",)"
      R"("stream_options":{"include_usage":true},"repeat_penalty":1.25,"thinking":{"type":"disabled"},)"
      R"("enable_thinking":false,"verbosity":"medium","prediction":{"type":"content","content":"x"}})"));
  EXPECT_EQ(strict.stop, good(chat_with(R"("n":1)")).stop) << "those of the model's format";
  EXPECT_FALSE(strict.stream);
  EXPECT_EQ(strict.sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(good(chat_with(R"("repeat_penalty":1.25,"repetition_penalty":1.5)"))
                .sampling.repetition_penalty,
            1.5F);
  // What this model cannot do is told like an unknown field.
  const auto asked = lenient(
      R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":"high","verbosity":"low"})",
      &parse_chat_completion);
  EXPECT_EQ(ignored(asked), "verbosity, reasoning_effort");
  EXPECT_EQ(
      ignored(lenient(R"({"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled",)"
                      R"("budget_tokens":1024}})",
                      &parse_chat_completion)),
      "thinking");
  EXPECT_EQ(
      ignored(lenient(R"({"messages":[{"role":"user","content":"x"}],"enable_thinking":true})",
                      &parse_chat_completion)),
      "enable_thinking");
}

TEST(Chat, HarmlessFieldsAreIgnored) {
  good(chat_with(
      R"("user":"me","metadata":{},"parallel_tool_calls":true,"tools":[],"tool_choice":"auto",
         "functions":null,"logprobs":false,"top_logprobs":0,"response_format":{"type":"text"},
         "modalities":["text"],"reasoning_effort":"none","moderation":null,"vllm_xargs":{},"max_tokens":5,"max_completion_tokens":5,
         "prompt_cache_key":"k","safety_identifier":"s","verbosity":"medium","n":1,"store":false)"));
}

TEST(Chat, Refuses) {
  const Refusal table[] = {
      {"{}", 400, "messages", "'messages' is missing"},
      {R"({"messages":[]})", 400, "messages", "must not be empty"},
      {R"({"messages":"hi"})", 400, "messages", "must be an array, not a string"},
      {R"({"messages":["hi"]})", 400, "messages[0]", "must be an object, not a string"},
      {R"({"messages":[{"content":"x"}]})", 400, "messages[0].role", "is missing"},
      {R"({"messages":[{"role":"user"}]})", 400, "messages[0].content", "is missing"},
      {R"({"messages":[{"role":1,"content":"x"}]})", 400, "messages[0].role", "must be a string"},
      {R"({"messages":[{"role":"king","content":"x"}]})", 400, "messages[0].role",
       "must be system, developer, user or assistant, not 'king'"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"tool","content":"x"}]})", 400,
       "messages[1].role", "'tool' is not supported"},
      {R"({"messages":[{"role":"user","content":5}]})", 400, "messages[0].content",
       "must be a string or an array of parts"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", 400, "messages[0].content[0]",
       "must be an object"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})", 400,
       "messages[0].content[0].type", "'image_url' is not supported"},
      {R"({"messages":[{"role":"user","content":[{"type":"refusal","refusal":"x"}]}]})", 400,
       "messages[0].content[0].type", "'refusal' is not supported"},
      {R"({"messages":[{"role":"assistant","content":[{"type":"refusal","text":"x"}]}]})", 400,
       "messages[0].content[0].refusal", "is missing"},
      {R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":"low"})", 400,
       "reasoning_effort", "this model has no efforts"},
      {R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":"lots"})", 400,
       "reasoning_effort", "must be none, minimal, low"},
      {R"({"messages":[{"role":"user","content":[{"text":"x"}]}]})", 400,
       "messages[0].content[0].type", "is missing"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", 400,
       "messages[0].content[0].text", "is missing"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":"x","y":1}]}]})", 400,
       "messages[0].content[0].y", "unknown field"},
      {R"({"messages":[{"role":"user","content":"x","extra":1}]})", 400, "messages[0].extra",
       "unknown field"},
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]})", 400,
       "messages[0].tool_calls", "is not supported"},
      {R"({"messages":[{"role":"user","content":"x"}],"prompt":"x"})", 400, "prompt",
       "is not supported; only null is accepted"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]})", 400,
       "tools", "is not supported"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})", 400,
       "tool_choice", "forces a call, but there are no 'tools'"},
      {R"({"messages":[{"role":"user","content":"x"}],"max_tokens":5,"max_completion_tokens":6})",
       400, "max_completion_tokens", "contradicts 'max_tokens'"},
      {R"({"messages":[{"role":"user","content":"x"}],"min_tokens":500})", 400, "messages",
       "'min_tokens' is 500"},
      {R"({"messages":[{"role":"user","content":")" + std::string(100'000, '\'') + "\"}]}", 400,
       "messages", "more than 512 tokens"},
      {R"({"messages":[{"role":"user","content":"x"}],"model":"gpt"})", 404, "model",
       "does not exist"},
  };
  for (const Refusal& line : table) expect_refused(line, chat);
}

TEST(Chat, WithoutAFormatItIsRefused) {
  ServedModel model = tiny_model();
  model.chat = nullptr;
  const auto body = R"({"messages":[{"role":"user","content":"x"}]})";
  const auto error = bad(parse_chat_completion(body, small_context(), model), body);
  EXPECT_EQ(error.status, 400);
  EXPECT_NE(error.body.find("has no chat format; use /v1/completions"), std::string::npos);
}

TEST(OpenAi, ErrorCodes) {
  const auto code = [](const ParseOutcome& outcome) {
    return error_of(bad(outcome, ""))["code"].get<std::string>();
  };
  EXPECT_EQ(code(completion("{}")), "invalid_argument");
  EXPECT_EQ(code(with(R"("model":"x")")), "model_not_found");
  EXPECT_EQ(code(with(R"("min_tokens":1000)")), "context_length_exceeded");
}

TEST(OpenAi, BeforeAnyWorkerIsReady) {
  auto context = small_context();
  context.max_context = 0;
  for (const char* prompt : {"", "hello"}) {
    const auto error =
        bad(parse_completion(R"({"prompt":")" + std::string(prompt) + "\"}", context, tiny_model()),
            "");
    EXPECT_EQ(error.status, 503);
    EXPECT_EQ(error.retry_after_s, 1U);
    EXPECT_TRUE(error_of(error)["param"].is_null());
  }
}

TEST(OpenAi, Models) {
  const ServedModel model = tiny_model();
  EXPECT_EQ(models_body({{&model, 256}}, 7),
            R"({"object":"list","data":[{"id":"tiny","object":"model","created":7,)"
            R"("owned_by":"baton","max_model_len":256}]})");
  EXPECT_EQ(
      std::get<std::string>(model_body("tiny", {{&model, 0}}, 7)),
      R"({"id":"tiny","object":"model","created":7,"owned_by":"baton","max_model_len":null})");
  EXPECT_EQ(std::get<HttpError>(model_body("x", {{&model, 0}}, 7)).status, 404);
}

// Random changes of a good body: always a request or a 4xx with a whole error object.
TEST(OpenAi, RandomBodiesAlwaysGetAnAnswer) {
  std::mt19937 random(11);
  const std::string seeds[] = {
      R"({"model":"tiny","prompt":"hello","max_tokens":5,"stop":["a"],"stream":true,"seed":1})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"hé"}]}],"temperature":0.5})"};
  const std::string words[] = {"null",
                               "-1",
                               "1e30",
                               "\"x\"",
                               "[]",
                               "{}",
                               "true",
                               "[[1]]",
                               "\"\\u0000\"",
                               "\"stop\"",
                               "\"n\":",
                               ",",
                               "18446744073709551615"};
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string body = seeds[i % 2];
    for (unsigned k = random() % 4; k > 0; --k) {
      const std::size_t at = random() % body.size();
      switch (random() % 4) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body.erase(at, 1 + random() % 6);
          break;
        case 2:
          body.insert(at, words[random() % std::size(words)]);
          break;
        default: {
          // A value replaced by another one.
          const std::size_t colon = body.find(':', at);
          if (colon != body.npos) {
            const std::size_t end = body.find_first_of(",}]", colon);
            if (end != body.npos)
              body.replace(colon + 1, end - colon - 1, words[random() % std::size(words)]);
          }
        }
      }
      if (body.empty()) body = "x";
    }
    const auto outcome = i % 2 == 0 ? completion(body) : chat(body);
    if (const auto* error = std::get_if<HttpError>(&outcome)) {
      ASSERT_GE(error->status, 400) << body;
      ASSERT_LT(error->status, 500) << body;
      ASSERT_FALSE(error_of(*error)["message"].get<std::string>().empty());
    } else {
      const auto& request = std::get<ParsedRequest>(outcome);
      ++accepted;
      ASSERT_NE(request.reply, nullptr);
      ASSERT_FALSE(request.prompts.empty());
      ASSERT_GE(request.sampling.max_tokens, 1U);
      ASSERT_LE(request.prompts.front().size() + request.sampling.max_tokens, 256U);
      ASSERT_LE(request.sampling.min_tokens, request.sampling.max_tokens);
    }
  }
  EXPECT_GT(accepted, 2000);
  EXPECT_LT(accepted, 18000);
}

}  // namespace
}  // namespace baton
