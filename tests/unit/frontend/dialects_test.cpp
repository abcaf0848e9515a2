// Every dialect: its paths are those that the configuration knows, its fields have its defaults,
// bounds and clamps, and its errors have its shape. Whole exchanges: tests/golden/dialects.
#include <algorithm>
#include <set>

#include "api_fixture.h"
#include "configs/dialects.h"
#include "frontend/dialects/common.h"
#include "frontend/dialects/registry.h"

namespace baton {
namespace {

using testing::bad;
using testing::good;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

/// A dialect's answer to a body on one of its paths.
struct Door {
  std::string dialect;
  std::string path;

  ParseOutcome parse(const std::string& body, RequestContext context = small_context()) const {
    context.path = path;
    for (const DialectRoute& route : dialect_named(dialect)->routes()) {
      const std::string fits = route.path;
      const bool variable = fits.find(':') != std::string::npos;
      const bool same =
          variable ? path.rfind(fits.substr(0, fits.find(':')), 0) == 0 : fits == path;
      if (same) return std::get<ParseBody>(route.answer)(body, context, tiny_model());
    }
    ADD_FAILURE() << dialect << " has no " << path;
    return http_error(404, "", "");
  }
  ParsedRequest take(const std::string& body) const { return good(parse(body)); }
  SamplingParams sampling(const std::string& body) const { return take(body).sampling; }
  /// Status and body as they go out.
  HttpError error(const std::string& body) const {
    return dialect_named(dialect)->shape(bad(parse(body), body));
  }
  void refuses(const std::string& body, int status, const std::string& part) const {
    const HttpError error = this->error(body);
    EXPECT_EQ(error.status, status) << dialect << " " << body;
    EXPECT_NE(error.body.find(part), std::string::npos) << body << "\n  says " << error.body;
    EXPECT_TRUE(Json::accept(error.body)) << error.body;
  }
};

/// {"inputs": "hello", "parameters": {...}}
std::string inputs(const std::string& parameters) {
  return R"({"inputs":"hello","parameters":{)" + parameters + "}}";
}

const Door kMindSpore{"mindspore", "/models/llama2"};
const Door kTutorial{"tutorial", "/completion/v1"};
const Door kTgi{"tgi", "/generate"};
const Door kTgiStream{"tgi", "/generate_stream"};
const Door kLightLlm{"lightllm", "/generate"};
const Door kMii{"mii", "/mii/tiny"};
const Door kDistServe{"distserve", "/generate"};
const Door kEnergon{"energonai", "/generation"};

// ------------------------------------------------------------------------------------ the registry

TEST(Registry, IsTheTableOfTheConfiguration) {
  ASSERT_EQ(all_dialects().size(), dialect_facts().size());
  for (std::size_t i = 0; i < all_dialects().size(); ++i) {
    const DialectFacts& facts = dialect_facts()[i];
    const Dialect& dialect = *all_dialects()[i];
    EXPECT_STREQ(dialect.name(), facts.name);
    std::set<std::string> told, made;
    for (const DialectPath& path : facts.paths) told.insert(std::string(path.method) + path.path);
    for (const DialectRoute& r : dialect.routes()) made.insert(std::string(r.method) + r.path);
    EXPECT_EQ(told, made) << facts.name;
    EXPECT_EQ(dialect_named(facts.name), &dialect);
  }
  EXPECT_EQ(dialect_named("nobody"), nullptr);
}

TEST(Registry, EveryDialectRefusesGarbageInItsOwnShape) {
  for (const Dialect* dialect : all_dialects()) {
    for (const DialectRoute& route : dialect->routes()) {
      const auto* parse = std::get_if<ParseBody>(&route.answer);
      if (parse == nullptr || std::string(route.path) == "/get_model_name")
        continue;  // reads no body
      RequestContext context = small_context();
      context.path = std::string(route.path) == "/mii/:name" ? "/mii/tiny" : route.path;
      for (const char* body : {"", "[]", "{", "{}", "{\"prompt\":7,\"inputs\":7,\"prompts\":7}",
                               "{\"nonsense\":1}", "\xff"}) {
        const HttpError error =
            dialect->shape(bad((*parse)(body, context, tiny_model()), route.path));
        EXPECT_GE(error.status, 400) << route.path << " " << body;
        EXPECT_TRUE(Json::accept(error.body)) << error.body;
      }
    }
  }
}

TEST(Registry, ErrorsOfTheServerHaveEachDialectsShape) {
  const HttpError full = http_error(Status(ErrorCode::queue_full, "full"));
  const auto shaped = [&](const char* name, const HttpError& error) {
    const HttpError made = dialect_named(name)->shape(error);
    return std::to_string(made.status) + " " + made.body;
  };
  EXPECT_EQ(shaped("openai", full), "429 " + full.body);
  EXPECT_EQ(shaped("mindspore", full), R"(429 {"detail":"full"})");
  EXPECT_EQ(shaped("tutorial", full), R"(429 {"detail":"full"})");
  EXPECT_EQ(shaped("tgi", full), R"(429 {"error":"full","error_type":"overloaded"})");
  EXPECT_EQ(shaped("lightllm", full), R"(429 {"message":"full"})");
  EXPECT_EQ(shaped("mii", full), R"(429 {"message":"full"})");
  EXPECT_EQ(shaped("distserve", full), R"(429 {"detail":"full"})");
  EXPECT_EQ(shaped("energonai", full), R"(406 {"detail":"full"})");
  EXPECT_EQ(shaped("anthropic", full),
            R"(429 {"type":"error","error":{"type":"rate_limit_error","message":"full"}})");
  EXPECT_EQ(shaped("ollama", full), R"(429 {"error":"full"})");
  const HttpError died = http_error(Status(ErrorCode::worker_crashes, "it died"));
  EXPECT_EQ(
      shaped("tgi", died),
      R"(424 {"error":"Request failed during generation: it died","error_type":"generation"})");
  // This one tells a failed request in a reply.
  const HttpError line = dialect_named("mindspore")->shape(died);
  EXPECT_EQ(line.status, 200);
  EXPECT_EQ(Json::parse(line.body)["finish_reason"], "predict_failed");
  EXPECT_EQ(Json::parse(line.body)["generated_text"], "error304: it died");
  HttpError stream = died;
  stream.stream = true;
  const std::string events = dialect_named("mindspore")->shape(stream).body;
  const std::string last = events.substr(events.rfind('\n', events.size() - 2) + 1);
  EXPECT_EQ(Json::parse(last)["data"][0]["finish_reason"], "predict_failed");
  EXPECT_EQ(shaped("mindspore", http_error(Status(ErrorCode::unavailable, "no"))),
            R"(503 {"detail":"no"})");
}

TEST(Registry, FastApiNamesThePlace) {
  const HttpError error = fastapi_error(http_error(invalid("why"), "parameters.stop[2]"));
  EXPECT_EQ(error.status, 422);
  EXPECT_EQ(
      error.body,
      R"({"detail":[{"loc":["body","parameters","stop",2],"msg":"why","type":"value_error"}]})");
}

// --------------------------------------------------------------------------------------- mindspore

TEST(MindSporeFields, Defaults) {
  const ParsedRequest request = kMindSpore.take(inputs(R"("max_new_tokens":9)"));
  const SamplingParams& s = request.sampling;
  EXPECT_EQ(s.temperature, 1.0F);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.top_p, 1.0F);
  EXPECT_EQ(s.typical_p, 1.0F);
  EXPECT_EQ(s.repetition_penalty, 1.0F);
  EXPECT_EQ(s.stop_ids, tiny_model().tokenizer->eos_ids());
  EXPECT_EQ(s.logprobs, 0);
  EXPECT_FALSE(request.seed_given);
  EXPECT_FALSE(request.stream);
}

TEST(MindSporeFields, DefaultOf300NewTokensIsOutOfASmallContextsRange) {
  const auto outcome = kMindSpore.parse(R"({"inputs":"hello"})");
  const auto* told = std::get_if<Answer>(&outcome);
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(Json::parse(told->body)["finish_reason"], "prompt_out_of_range");
  EXPECT_EQ(Json::parse(told->body)["generated_text"], "Error202: prompt out of range");
}

TEST(MindSporeFields, StringsThatAreBooleansAndNumbers) {
  const Door whole{"mindspore", "/models/internlm/generate"};
  const auto request = kMindSpore.take(
      R"({"inputs":"hello","stream":"True","parameters":{"do_sample":"False","max_new_tokens":"7",
      "return_full_text":"True","temperature":"0.5"}})");
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.sampling.temperature, 0.0F);
  EXPECT_EQ(request.sampling.max_tokens, 7U);
  EXPECT_FALSE(
      whole.take(R"({"inputs":"hello","stream":"True","parameters":{"max_new_tokens":5}})").stream)
      << "the path decides";
  kMindSpore.refuses(inputs(R"("do_sample":"perhaps")"), 422, "parameters\",\"do_sample");
  kMindSpore.refuses(inputs(R"("max_new_tokens":"many")"), 422, "max_new_tokens");
}

TEST(MindSporeFields, ValuesOutOfRangeAreMended) {
  const auto with = [](const std::string& fields) {
    return kMindSpore.sampling(inputs("\"max_new_tokens\":5," + fields));
  };
  const auto vocab = tiny_model().tokenizer->vocab_size();
  EXPECT_EQ(with(R"("top_k":0)").top_k, 1);
  EXPECT_EQ(with(R"("top_k":-1)").top_k, 1);
  EXPECT_EQ(with(R"("top_k":)" + std::to_string(vocab)).top_k, 1);
  EXPECT_EQ(with(R"("top_k":50)").top_k, 50);
  ASSERT_GT(vocab, 101U);
  EXPECT_EQ(with(R"("top_k":101)").top_k, 100);
  EXPECT_EQ(with(R"("top_p":0)").top_p, 0.01F);
  EXPECT_EQ(with(R"("top_p":-3)").top_p, 0.01F);
  EXPECT_EQ(with(R"("top_p":1.5)").top_p, 1.0F);
  EXPECT_EQ(with(R"("top_p":0.5)").top_p, 0.5F);
  for (const char* bad : {"0", "-1", "1e-5", "65537"}) {
    EXPECT_EQ(with(std::string("\"temperature\":") + bad).temperature, 0.0F) << bad;
  }
  EXPECT_EQ(with(R"("temperature":65536)").temperature, 65536.0F);
}

TEST(MindSporeFields, WhatItsServerLosesCountsHere) {
  const auto request = kMindSpore.take(inputs(
      R"("max_new_tokens":5,"seed":9,"stop":["x"],"repetition_penalty":1.5,"typical_p":0.5,"topk_k":3)"));
  EXPECT_TRUE(request.seed_given);
  EXPECT_EQ(request.sampling.seed, 9U);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_EQ(request.sampling.typical_p, 0.5F);
  kMindSpore.refuses(inputs(R"("best_of":2)"), 422, "unknown field 'parameters.best_of'");
  kMindSpore.refuses(R"({"inputs":"hello","parameters":[]})", 422, "must be an object");
}

TEST(MindSporeFields, AnEmptyPromptIsToldInAReply) {
  const auto outcome = kMindSpore.parse(R"({"inputs":"","stream":true})");
  const std::string body = std::get<Answer>(outcome).body;
  EXPECT_NE(body.find("Error203: prompt token empty"), std::string::npos);
  EXPECT_EQ(std::count(body.begin(), body.end(), '\n'), 2) << body;
  RequestContext none = small_context();
  none.max_context = 0;
  EXPECT_EQ(bad(kMindSpore.parse(R"({"inputs":"hello"})", none), "").status, 503);
}

// ---------------------------------------------------------------------------------------- tutorial

std::string task(const std::string& config) {
  return R"({"model":"tiny","prompt":"hello","generation_config":{)" + config + "}}";
}

TEST(TutorialFields, Defaults) {
  const ParsedRequest request = kTutorial.take(R"({"model":"tiny","prompt":"hello"})");
  const SamplingParams& s = request.sampling;
  EXPECT_EQ(s.temperature, 0.0F);
  EXPECT_EQ(s.max_tokens, 32U);
  EXPECT_EQ(s.min_tokens, 1U);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.top_p, 1.0F);
  EXPECT_EQ(s.repetition_penalty, 1.0F);
  EXPECT_EQ(s.seed, 1024U);
  EXPECT_TRUE(request.seed_given);
  EXPECT_EQ(request.choices, 1U);
}

TEST(TutorialFields, WithoutSamplingItsParametersCountForNothing) {
  const auto greedy =
      kTutorial.sampling(task(R"("temperature":0.5,"top_p":0.5,"top_k":5,"typical_p":0.5)"));
  EXPECT_EQ(greedy.temperature, 0.0F);
  EXPECT_EQ(greedy.top_p, 1.0F);
  EXPECT_EQ(greedy.top_k, 0);
  EXPECT_EQ(greedy.typical_p, 1.0F);
  const auto drawn = kTutorial.sampling(task(
      R"("do_sample":true,"temperature":0.5,"top_p":0.25,"top_k":5,"typical_p":0.5,"seed":3)"));
  EXPECT_EQ(drawn.temperature, 0.5F);
  EXPECT_EQ(drawn.top_p, 0.25F);
  EXPECT_EQ(drawn.top_k, 5);
  EXPECT_EQ(drawn.typical_p, 0.5F);
  EXPECT_EQ(drawn.seed, 3U);
}

TEST(TutorialFields, RulesBetweenFields) {
  kTutorial.refuses(task(R"("num_return_sequences":2)"), 422, "above 'num_beams'");
  kTutorial.refuses(task(R"("min_new_tokens":5,"max_new_tokens":4)"), 422,
                    "above 'max_new_tokens'");
  kTutorial.refuses(task(R"("num_beams":2,"do_sample":true)"), 422,
                    "beam search, which draws no tokens");
  kTutorial.refuses(task(R"("num_beams":65)"), 422, "num_beams");
  kTutorial.refuses(task(R"("no_repeat_ngram_size":2)"), 422, "unknown field");
  kTutorial.refuses(R"({"prompt":"hello"})", 422, "'model' is missing");
  kTutorial.refuses(R"({"model":"tiny"})", 422, "'prompt' is missing");
  EXPECT_EQ(kTutorial.take(R"({"model":"","prompt":"hello"})").prompts.size(), 1U);
  kTutorial.refuses(R"({"model":"other","prompt":"hello"})", 404, "does not exist here");
  EXPECT_EQ(kTutorial.sampling(task(R"("eos_token_id":4,"pad_token_id":0)")).stop_ids,
            std::vector<Token>{4});
}

TEST(TutorialFields, Beams) {
  const ParsedRequest one = kTutorial.take(task(R"("early_stopping":false)"));
  EXPECT_FALSE(one.sampling.beams());
  const ParsedRequest plain =
      kTutorial.take(task(R"("num_beams":4,"num_return_sequences":3,"temperature":2)"));
  EXPECT_EQ(plain.sampling.num_beams, 4U);
  EXPECT_EQ(plain.sampling.num_return_sequences, 3U);
  EXPECT_EQ(plain.choices, 3U);
  EXPECT_EQ(plain.sampling.early_stopping, EarlyStopping::at_once) << "that is its default";
  EXPECT_TRUE(plain.sampling.within_bounds());
  EXPECT_EQ(kTutorial.sampling(task(R"("num_beams":64,"early_stopping":false)")).early_stopping,
            EarlyStopping::heuristic);
  RequestContext small = small_context();
  small.max_choices = 2;
  const std::string body = task(R"("num_beams":4,"num_return_sequences":3)");
  EXPECT_NE(bad(kTutorial.parse(body, small), body).message.find("2 streams"), std::string::npos);
}

TEST(TutorialFields, ChatsAreThoseOfOpenAiWithAnotherLength) {
  const Door chat{"tutorial", "/chat_completion/v1"};
  const std::string messages = R"("messages":[{"role":"user","content":"hello"}])";
  EXPECT_EQ(chat.sampling(R"({"model":"tiny",)" + messages + "}").max_tokens, 32U);
  EXPECT_EQ(chat.sampling(R"({"model":"tiny","max_tokens":7,)" + messages + "}").max_tokens, 7U);
  chat.refuses(R"({"model":"tiny","top_k":3,)" + messages + "}", 422, "unknown field 'top_k'");
  chat.refuses("{" + messages + "}", 422, "'model' is missing");
}

// --------------------------------------------------------------------------------------------- tgi

TEST(TgiFields, GreedyUnlessSomethingAsksForSampling) {
  const auto plain = kTgi.take(R"({"inputs":"hello"})");
  EXPECT_EQ(plain.sampling.temperature, 0.0F);
  EXPECT_EQ(plain.sampling.max_tokens, 100U);
  EXPECT_EQ(plain.sampling.logprobs, -1) << "nobody asked for details";
  EXPECT_TRUE(plain.include_stop_in_output);
  EXPECT_EQ(kTgi.sampling(inputs(R"("do_sample":true)")).temperature, 1.0F);
  EXPECT_EQ(kTgi.sampling(inputs(R"("top_p":0.5)")).temperature, 1.0F);
  EXPECT_EQ(kTgi.sampling(inputs(R"("temperature":0.5)")).temperature, 0.5F);
  EXPECT_EQ(kTgiStream.sampling(inputs("")).logprobs, 0);
  EXPECT_EQ(kTgi.sampling(inputs(R"("details":true,"top_n_tokens":3)")).logprobs, 3);
  EXPECT_EQ(kTgi.sampling(inputs(R"("details":true,"decoder_input_details":true)")).prompt_logprobs,
            0);
  EXPECT_EQ(kTgi.take(inputs(R"("truncate":1)")).prompts.front().size(), 1U);
  EXPECT_EQ(kTgi.take(inputs(R"("best_of":2,"do_sample":true)")).choices, 2U);
}

TEST(TgiFields, AtTheRootTheBodyDecides) {
  const Door root{"tgi", "/"};
  EXPECT_FALSE(root.take(R"({"inputs":"hello"})").stream);
  EXPECT_TRUE(root.take(R"({"inputs":"hello","stream":true})").stream);
  EXPECT_FALSE(kTgi.take(R"({"inputs":"hello","stream":true})").stream);
}

TEST(TgiFields, OneInvocationIsAnyRequest) {
  const Door invoke{"tgi", "/invocations"};
  const auto text = invoke.take(inputs(R"("max_new_tokens":3)"));
  EXPECT_EQ(text.sampling.max_tokens, 3U);
  EXPECT_TRUE(invoke.take(R"({"inputs":"hello","stream":true})").stream);
  const auto chat = invoke.take(
      R"({"model":"tgi","messages":[{"role":"user","content":"hello"}],"max_tokens":4})");
  EXPECT_EQ(chat.sampling.max_tokens, 4U);
  EXPECT_EQ(invoke.take(R"({"model":"dummy","prompt":"hello","max_tokens":5})").sampling.max_tokens,
            5U);
  invoke.refuses("{}", 422, "'inputs' is missing");
  invoke.refuses(R"({"messages":[]})", 422, "\"error_type\":\"validation\"");
}

TEST(TgiFields, OnItsPortAModelHasAnyName) {
  RequestContext any = small_context();
  any.any_model = true;
  for (const char* name : {"tgi", "dummy", "tiny"}) {
    const std::string head = std::string(R"({"model":")") + name + "\",";
    good(Door{"openai", "/v1/chat/completions"}.parse(
        head + R"("messages":[{"role":"user","content":"x"}]})", any));
    good(Door{"openai", "/v1/completions"}.parse(head + R"("prompt":"x"})", any));
  }
  const auto tokens = Door{"tgi", "/tokenize"}.parse(R"({"model":"tgi","inputs":"hello"})", any);
  EXPECT_TRUE(Json::parse(std::get<Answer>(tokens).body).is_array());
}

TEST(TgiFields, Bounds) {
  for (const char* field : {R"("temperature":0)",
                            R"("top_p":0)",
                            R"("top_p":1.1)",
                            R"("top_k":0)",
                            R"("typical_p":0)",
                            R"("repetition_penalty":0)",
                            R"("max_new_tokens":0)",
                            R"("truncate":0)",
                            R"("top_n_tokens":6)",
                            R"("best_of":3)",
                            R"("best_of":2)",
                            R"("watermark":true)",
                            R"("grammar":{"type":"json"})",
                            R"("grammar":{"type":"ebnf","value":"x"})",
                            R"("grammar":{"type":"regex","value":""})",
                            R"("grammar":{"type":"json","value":"[]"})",
                            R"("grammar":{"type":"regex","value":"x","more":1})",
                            R"("grammar":"x")",
                            R"("adapter_id":"a")",
                            R"("nonsense":1)",
                            R"("max_new_tokens":256)"}) {
    kTgi.refuses(inputs(field), 422, "\"error_type\":\"validation\"");
  }
  kTgiStream.refuses(inputs(R"("best_of":2,"do_sample":true)"), 422, "cannot be streamed");
  kTgiStream.refuses(inputs(R"("decoder_input_details":true)"), 422, "cannot be streamed");
}

TEST(TgiFields, Grammars) {
  const auto schema = kTgi.take(inputs(
      R"("grammar":{"type":"json","value":{"type":"object","properties":{"z":{},"a":{}}}})"));
  EXPECT_EQ(schema.sampling.grammar_kind, GrammarKind::json_schema);
  EXPECT_EQ(schema.sampling.grammar, R"({"type":"object","properties":{"z":{},"a":{}}})")
      << "in the order of the client's keys";
  EXPECT_EQ(schema.grammar_field, "parameters.grammar.value");
  const auto text = kTgiStream.take(inputs(R"("grammar":{"type":"json","value":"{\"a\":1}"})"));
  EXPECT_EQ(text.sampling.grammar, R"({"a":1})");
  const auto regex = kTgi.take(inputs(R"("grammar":{"type":"regex","value":"[0-9]+"})"));
  EXPECT_EQ(regex.sampling.grammar_kind, GrammarKind::regex);
  EXPECT_EQ(regex.sampling.grammar, "[0-9]+");
}

// ---------------------------------------------------------------------------------- the small ones

TEST(LightLlmFields, DefaultsAndBounds) {
  const auto plain = kLightLlm.take(R"({"inputs":"hello","parameters":{}})");
  EXPECT_EQ(plain.sampling.temperature, 0.0F);
  EXPECT_EQ(plain.sampling.max_tokens, 16U);
  EXPECT_EQ(kLightLlm.sampling(inputs(R"("do_sample":true,"top_k":-1)")).top_k, 0);
  EXPECT_TRUE(kLightLlm.sampling(inputs(R"("ignore_eos":true)")).stop_ids.empty());
  EXPECT_EQ(kLightLlm.take(inputs(R"("stop_sequences":["a","b"])")).stop.size(), 2U);
  for (const char* field :
       {R"("temperature":0)", R"("top_p":0)", R"("top_k":-2)", R"("repetition_penalty":0.5)",
        R"("presence_penalty":-1)", R"("max_new_tokens":0)", R"("best_of":2)", R"("nonsense":1)"}) {
    kLightLlm.refuses(inputs(field), 400, "{\"message\":");
  }
}

TEST(LightLlmFields, WhatItsTestsSend) {
  const auto regex = kLightLlm.take(
      inputs(R"("do_sample":false,"ignore_eos":true,"regular_constraint":"-?\\d+")"));
  EXPECT_EQ(regex.sampling.grammar_kind, GrammarKind::regex);
  EXPECT_EQ(regex.sampling.grammar, "-?\\d+");
  EXPECT_EQ(regex.grammar_field, "parameters.regular_constraint");
  EXPECT_FALSE(regex.sampling.stop_ids.empty()) << "what is complete can end";
  const auto json = kLightLlm.take(inputs(
      R"("guided_json":"{\"type\": \"array\"}","guided_grammar":"","regular_constraint":"")"));
  EXPECT_EQ(json.sampling.grammar_kind, GrammarKind::json_schema);
  EXPECT_EQ(json.sampling.grammar, "{\"type\": \"array\"}");
  EXPECT_EQ(kLightLlm.sampling(inputs(R"("guided_json":{"z":1,"a":2})")).grammar,
            R"({"z":1,"a":2})");
  EXPECT_EQ(kLightLlm.sampling(inputs(R"("guided_grammar":"root ::= \"a\"")")).grammar_kind,
            GrammarKind::ebnf);
  EXPECT_EQ(kLightLlm.sampling(inputs(R"("allowed_token_ids":[3,2,3])")).allowed_tokens,
            (std::vector<Token>{2, 3}));
  EXPECT_TRUE(kLightLlm.sampling(inputs(R"("allowed_token_ids":[])")).allowed_tokens.empty());
  const auto bare = kLightLlm.take(inputs(R"("add_special_tokens":false)")).prompts.front();
  EXPECT_EQ(bare, tiny_model().tokenizer->encode("hello", false));
  EXPECT_EQ(kLightLlm.sampling(inputs(R"("min_new_tokens":3)")).min_tokens, 3U);
  EXPECT_FALSE(
      kLightLlm
          .take(inputs(R"("skip_special_tokens":false,"best_of":1,"n":1,"input_penalty":false)"))
          .skip_special_tokens);
  for (const char* field :
       {R"("regular_constraint":"a","guided_json":"{}")", R"("guided_json":"[]")", R"("n":2)",
        R"("allowed_token_ids":[-1])", R"("min_new_tokens":17)"}) {
    kLightLlm.refuses(inputs(field), 400, "{\"message\":");
  }
}

/// An answer that needs no worker.
Json answer(const Door& door, const std::string& body) {
  const auto outcome = door.parse(body);
  if (const auto* error = std::get_if<HttpError>(&outcome)) return "refused: " + error->body;
  return Json::parse(std::get<Answer>(outcome).body);
}
Json page(const std::string& dialect, const std::string& path, const PageFacts& facts) {
  for (const DialectRoute& route : dialect_named(dialect)->routes()) {
    const auto* make = std::get_if<MakePage>(&route.answer);
    if (make != nullptr && route.path == path)
      return Json::parse(std::get<Answer>((*make)(facts, tiny_model())).body);
  }
  return "no page " + path;
}

TEST(LightLlmRoutes, TokensNamesAndLoad) {
  const std::size_t count = tiny_model().tokenizer->encode("hello", true).size();
  const Door tokens{"lightllm", "/tokens"};
  EXPECT_EQ(answer(tokens, R"({"text":"hello","parameters":{"max_new_tokens":4}})"),
            (Json{{"ntokens", count}}));
  EXPECT_EQ(answer(tokens, R"({"text":"hello"})"), (Json{{"ntokens", count}}));
  tokens.refuses("{}", 400, "'text' is missing");
  EXPECT_EQ(answer({"lightllm", "/get_model_name"}, ""), (Json{{"model_name", "tiny"}}));
  EXPECT_EQ(page("lightllm", "/get_model_name", {}), (Json{{"model_name", "tiny"}}));
  PageFacts facts;
  EXPECT_EQ(page("lightllm", "/token_load", facts)["current_load"], 0.0);
  facts.pool_tokens = 64;
  facts.used_tokens = 16;
  EXPECT_EQ(page("lightllm", "/token_load", facts),
            (Json{{"current_load", 0.25}, {"logical_max_load", 0.25}, {"dynamic_max_load", 0.25}}));
}

TEST(RouterPages, SayWhatIsServedAndHowMuchThereIsToDo) {
  PageFacts facts;
  EXPECT_TRUE(page("openai", "/server_info", facts)["max_total_num_tokens"].is_null());
  facts.version = "v";
  facts.max_context = 256;
  facts.pool_tokens = 640;
  facts.used_tokens = 48;
  facts.max_batch = 8;
  facts.running = 5;
  facts.waiting = 2;
  const Json server = {{"served_model_name", "tiny"},
                       {"version", "v"},
                       {"dp_size", 1},
                       {"context_length", 256},
                       {"max_running_requests", 8},
                       {"max_total_num_tokens", 640}};
  const Json model = {
      {"model_path", "tiny"}, {"is_generation", true}, {"preferred_sampling_params", nullptr}};
  EXPECT_EQ(page("openai", "/server_info", facts), server);
  EXPECT_EQ(page("openai", "/get_server_info", facts), server);
  EXPECT_EQ(page("openai", "/model_info", facts), model);
  EXPECT_EQ(page("openai", "/get_model_info", facts), model);
  const Json load = Json::array({{{"rid", nullptr},
                                  {"dp_rank", 0},
                                  {"num_reqs", 5},
                                  {"num_waiting_reqs", 2},
                                  {"num_tokens", 48}}});
  EXPECT_EQ(page("openai", "/get_load", facts), load);
}

TEST(MiiFields, DefaultsAndBounds) {
  const auto plain = kMii.take(R"({"prompts":["hello","hello world"]})");
  ASSERT_EQ(plain.prompts.size(), 2U);
  EXPECT_EQ(plain.sampling.temperature, 1.0F);
  EXPECT_EQ(plain.sampling.top_p, 0.9F);
  EXPECT_EQ(plain.max_context, 256U) << "max_length 1024 is more than the context";
  const auto bounded = kMii.take(R"({"prompts":"hello","max_length":20,"do_sample":false})");
  EXPECT_EQ(bounded.max_context, 20U);
  EXPECT_EQ(bounded.sampling.temperature, 0.0F);
  EXPECT_EQ(kMii.sampling(R"({"prompts":"hello","max_new_tokens":3})").max_tokens, 3U);
  for (const char* body :
       {R"({"prompts":[]})", R"({"prompts":[1]})", R"({"prompts":"x","stream":true})",
        R"({"prompts":"x","min_new_tokens":3,"max_new_tokens":2})",
        R"({"prompts":"hello world","max_length":2})"}) {
    kMii.refuses(body, 400, "{\"message\":");
  }
  EXPECT_EQ(Door({"mii", "/mii/%74iny"}).take(R"({"prompts":"x"})").max_context, 256U);
  Door{"mii", "/mii/other"}.refuses(R"({"prompts":"x"})", 404, "no deployment 'other'");
}

TEST(DistServeFields, DefaultsAndBounds) {
  const auto plain = kDistServe.take(R"({"prompt":"hello"})");
  EXPECT_EQ(plain.sampling.temperature, 1.0F);
  EXPECT_EQ(plain.sampling.max_tokens, 16U);
  EXPECT_EQ(kDistServe.sampling(R"({"prompt":"hello","n":1,"best_of":null,"top_k":-1})").top_k, 0);
  const auto beams = kDistServe.take(R"({"prompt":"hello","use_beam_search":true,"best_of":4})");
  EXPECT_EQ(beams.sampling.num_beams, 4U);
  EXPECT_EQ(beams.choices, 1U);
  EXPECT_EQ(beams.sampling.temperature, 0.0F);
  EXPECT_TRUE(beams.sampling.within_bounds());
  for (const char* field :
       {R"("n":2)", R"("best_of":2)", R"("use_beam_search":true,"best_of":65)",
        R"("use_beam_search":true,"n":2)", R"("use_beam_search":true,"top_p":0.5)",
        R"("use_beam_search":true,"temperature":0.5)",
        R"("use_beam_search":true,"best_of":2,"stop":["x"])", R"("logprobs":1)",
        R"("max_tokens":0)", R"("length_penalty":1)"}) {
    kDistServe.refuses(R"({"prompt":"hello",)" + std::string(field) + "}", 422, "\"detail\":[");
  }
}

TEST(EnergonAiFields, Bounds) {
  const auto plain = kEnergon.take(R"({"prompt":"hello","max_tokens":200})");
  EXPECT_EQ(plain.sampling.temperature, 1.0F);
  EXPECT_EQ(plain.sampling.top_p, 1.0F);
  for (const char* field :
       {R"("max_tokens":0)", R"("max_tokens":257)", R"("max_tokens":9,"top_k":0)",
        R"("max_tokens":9,"top_p":1.0)", R"("max_tokens":9,"temperature":1.0)",
        R"("max_tokens":9,"stream":true)", R"("top_k":5)"}) {
    kEnergon.refuses(R"({"prompt":"hello",)" + std::string(field) + "}", 422, "\"detail\":[");
  }
  kEnergon.refuses(R"({"prompt":"","max_tokens":9})", 422, "must not be empty");
  // The Bloom server's form.
  const auto bloom = kEnergon.take(R"({"prompt":"hello","max_new_tokens":9,"greedy":false})");
  EXPECT_EQ(bloom.sampling.max_tokens, 9U);
  EXPECT_EQ(bloom.sampling.temperature, 0.0F);
  for (const char* field :
       {R"("max_new_tokens":0)", R"("max_new_tokens":257)", R"("max_new_tokens":9,"top_k":5)",
        R"("max_new_tokens":9,"max_tokens":9)"}) {
    kEnergon.refuses(R"({"prompt":"hello",)" + std::string(field) + "}", 422, "\"detail\":[");
  }
}

// ------------------------------------------------------------------------------------------
// replies

/// Feeds "a", "b" (the last one with text that was held back behind it) and the end.
std::string written(ReplyWriter& writer, bool known_last) {
  std::string out = writer.begin(0, nullptr);
  out += writer.text({.choice = 0, .text = "a", .token = 7, .time = kSecond});
  out +=
      writer.text({.choice = 0, .text = "b", .token = 8, .time = 2 * kSecond, .last = known_last});
  if (known_last) out += writer.text({.choice = 0, .text = "!"});
  out += writer.end(0, {.reason = FinishReason::length, .stop_string = {}});
  return out + writer.finish({.prompt_tokens = 3, .completion_tokens = 2});
}

TEST(DialectReplies, TheLastTokenOfAStreamWaitsForTheEnd) {
  auto tgi = kTgiStream.take(inputs(""));
  EXPECT_EQ(
      written(*tgi.reply, true),
      "data:{\"index\":1,\"token\":{\"id\":7,\"text\":\"a\",\"logprob\":null,\"special\":false},"
      "\"generated_text\":null,\"details\":null}\n\n"
      "data:{\"index\":2,\"token\":{\"id\":8,\"text\":\"b!\",\"logprob\":null,\"special\":false},"
      "\"generated_text\":\"ab!\",\"details\":{\"finish_reason\":\"length\",\"generated_tokens\":2,"
      "\"seed\":null,\"input_length\":3}}\n\n");
  // An end that nobody foresaw gets an event of its own.
  auto again = kTgiStream.take(inputs(""));
  const std::string three = written(*again.reply, false);
  EXPECT_NE(three.find("\"index\":3,\"token\":{\"id\":8,\"text\":\"\""), std::string::npos)
      << three;
  auto light = Door{"lightllm", "/generate_stream"}.take(inputs(""));
  const std::string events = written(*light.reply, true);
  EXPECT_NE(
      events.find("\"text\":\"b!\",\"logprob\":null,\"special\":false,\"count_output_tokens\":2,"),
      std::string::npos)
      << events;
}

TEST(DialectReplies, StreamsThatFailSayWhyInTheirShape) {
  const Status died(ErrorCode::worker_crashes, "it \"died\"");
  EXPECT_EQ(kTgiStream.take(inputs("")).reply->fail(died),
            "data:{\"error\":\"Request failed during generation: it \\\"died\\\"\",\"error_type\":"
            "\"generation\"}\n\n");
  EXPECT_EQ(Door({"lightllm", "/generate_stream"}).take(inputs("")).reply->fail(died),
            "data:{\"message\":\"it \\\"died\\\"\"}\n\n");
  const std::string zero = kDistServe.take(R"({"prompt":"hello","stream":true})").reply->fail(died);
  EXPECT_EQ(zero, "{\"detail\":\"it \\\"died\\\"\"}");
}

TEST(DialectReplies, DistServesObjectsStandAlone) {
  const std::string body = R"({"prompt":"hello","stream":true})";
  EXPECT_EQ(written(*kDistServe.take(body).reply, false), R"({"text":"a"}{"text":"ab"})");
  RequestContext old = small_context();
  old.zero_bytes = true;
  const std::string zeros = written(*good(kDistServe.parse(body, old)).reply, false);
  EXPECT_EQ(zeros, std::string(R"({"text":"a"})") + '\0' + R"({"text":"ab"})" + '\0');
}

TEST(DialectReplies, MiiSendsAList) {
  auto request = kMii.take(R"({"prompts":"hello"})");
  const Json reply = Json::parse(written(*request.reply, false));
  ASSERT_TRUE(reply.is_array());
  EXPECT_EQ(reply[0]["generated_text"], "ab");
  EXPECT_EQ(reply[0]["generated_length"], 2);
  EXPECT_EQ(reply[0]["finish_reason"], "length");
}

TEST(DialectReplies, LightLlmTellsTheEndAndTheCounts) {
  const Json whole = Json::parse(written(*kLightLlm.take(inputs("")).reply, false));
  EXPECT_EQ(whole["finish_reason"], "length");
  EXPECT_EQ(whole["prompt_tokens"], 3);
  EXPECT_EQ(whole["count_output_tokens"], 2);
  auto request = Door{"lightllm", "/generate_stream"}.take(inputs(""));
  const std::size_t prompt = request.prompts.front().size();
  const std::string events = written(*request.reply, true);
  const Json first = Json::parse(events.substr(5, events.find('\n') - 5));
  const std::size_t at = events.rfind("data:");
  const Json last = Json::parse(events.substr(at + 5));
  EXPECT_TRUE(first["finish_reason"].is_null());
  EXPECT_EQ(first["token"]["count_output_tokens"], 1);
  EXPECT_EQ(first["token"]["prompt_tokens"], prompt);
  EXPECT_EQ(last["finish_reason"], "length");
  EXPECT_EQ(last["token"]["count_output_tokens"], 2);
}

TEST(DialectReplies, DistServeTellsTimes) {
  RequestContext context = small_context();
  context.received = kSecond / 2;
  context.wall_offset = 1000 * kSecond;
  auto request = good(kDistServe.parse(R"({"prompt":"hello"})", context));
  const Json reply = Json::parse(written(*request.reply, true));
  EXPECT_EQ(reply["text"], "helloab!");
  EXPECT_EQ(reply["timestamps"], (Json{1001.0, 1002.0}));
  EXPECT_EQ(reply["lifetime_events"],
            (Json{{{"timestamp", 1000.5}, {"event_type", "issued"}},
                  {{"timestamp", 1002.0}, {"event_type", "decoding_end"}}}))
      << "a scheduler that tells nothing leaves nothing to guess";
  EXPECT_TRUE(request.lifetime);
  EXPECT_FALSE(kDistServe.take(R"({"prompt":"hello","stream":true})").lifetime);
}

TEST(DialectReplies, DistServeTellsMomentsInOrderOfTime) {
  auto request = kDistServe.take(R"({"prompt":"hello"})");
  request.reply->text({.choice = 0, .text = "a", .token = 7, .time = 9 * kSecond});
  request.reply->end(0, {.reason = FinishReason::length,
                         .stop_string = {},
                         .lifetime = {kSecond, 3 * kSecond, 2 * kSecond, 3 * kSecond, 0}});
  const Json reply = Json::parse(request.reply->finish({}));
  std::string order;
  for (const auto& event : reply["lifetime_events"]) {
    order += event["event_type"].get<std::string>() + " ";
  }
  EXPECT_EQ(order, "issued context_begin migration_begin context_end migration_end decoding_end ");
}

// ------------------------------------------------------------------------------------- integers

TEST(Integers, OfMoreThan64BitsAreRefusedAndNoneIsAnother) {
  const Door ollama{"ollama", "/api/generate"};
  const auto generate = [](const std::string& seed) {
    return R"({"model":"tiny","prompt":"hello","options":{"seed":)" + seed + "}}";
  };
  EXPECT_FALSE(ollama.take(generate("-1")).seed_given);
  EXPECT_EQ(ollama.take(generate("7")).sampling.seed, 7U);
  for (const char* beyond : {"18446744073709551615", "9223372036854775808", "1e30"}) {
    const HttpError error = bad(ollama.parse(generate(beyond)), beyond);
    EXPECT_EQ(error.status, 400) << beyond;
    EXPECT_NE(error.message.find("options.seed"), std::string::npos) << error.message;
  }
  for (const Door& door : {kTgi, kMindSpore}) {
    door.refuses(inputs("\"max_new_tokens\":18446744073709551615"), 422, "max_new_tokens");
  }
  // TGI's seeds have 64 bits and no sign, and its replies tell them.
  for (const char* seed : {"18446744073709551615", "9223372036854775808", "0"}) {
    EXPECT_EQ(std::to_string(
                  kTgi.sampling(inputs("\"do_sample\":true,\"seed\":" + std::string(seed))).seed),
              seed);
  }
  kTgi.refuses(inputs("\"seed\":18446744073709551616"), 422, "seed");
}

}  // namespace
}  // namespace baton
