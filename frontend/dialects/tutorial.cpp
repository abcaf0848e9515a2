#include "frontend/dialects/tutorial.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"
#include "frontend/openai/openai_api.h"

namespace baton {
namespace tutorial {
namespace {

using Json = nlohmann::json;
using Page = std::variant<Answer, HttpError>;

constexpr std::int64_t kDefaultNewTokens = 32;
constexpr std::int64_t kDefaultSeed = 1024;
constexpr std::int64_t kMaxBeams = SamplingParams::kMaxBeams;

/// {"choices": [{"text", "index", "finish_reason"}], "usage"}
class CompletionReply : public ReplyWriter {
 public:
  explicit CompletionReply(std::uint32_t choices) : choices_(choices) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    choices_[piece.choice].text += piece.text;
    return {};
  }
  std::string end(std::uint32_t choice, const Ending& ending) override {
    choices_[choice].reason = ending.reason;
    return {};
  }
  std::string finish(const Usage& usage) override {
    std::string body = "{\"choices\":[";
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      body += std::string(i == 0 ? "" : ",") + "{\"text\":" + json_string(choices_[i].text) +
              ",\"index\":" + std::to_string(i) + ",\"finish_reason\":\"" +
              to_string(choices_[i].reason) + "\"}";
    }
    const std::uint64_t total = std::uint64_t{usage.prompt_tokens} + usage.completion_tokens;
    return body + "],\"usage\":{\"prompt_tokens\":" + std::to_string(usage.prompt_tokens) +
           ",\"completion_tokens\":" + std::to_string(usage.completion_tokens) +
           ",\"total_tokens\":" + std::to_string(total) + "}}";
  }
  std::string fail(const Status& status) override { return error_json(status); }

 private:
  struct Choice {
    std::string text;
    FinishReason reason = FinishReason::none;
  };
  std::vector<Choice> choices_;
};

void read_beams(FieldReader& fields, const RequestContext& context, ParsedRequest& request) {
  const auto beams = fields.integer("num_beams", 1, kMaxBeams).value_or(1);
  const auto returned = fields.integer("num_return_sequences", 1, kMaxBeams).value_or(1);
  const bool early = fields.boolean("early_stopping").value_or(true);
  if (returned > beams) {
    fields.fail("num_return_sequences", "is " + std::to_string(returned) +
                                            ", above 'num_beams', which is " +
                                            std::to_string(beams));
  }
  if (beams == 1) return;
  if (early) request.sampling.early_stopping = EarlyStopping::at_once;
  ask_for_beams(fields, context, "num_beams", beams, returned, request);
}

void read_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const bool sample = fields.boolean("do_sample").value_or(false);
  const double temperature = fields.number("temperature", 0, 100, true).value_or(1);
  const double top_p = fields.number("top_p", 0, 1, true).value_or(1);
  const std::int64_t top_k = fields.integer("top_k", 0, kMaxCount).value_or(0);
  const double typical_p = fields.number("typical_p", 0, 1, true).value_or(1);
  if (sample) {  // otherwise these four count for nothing
    sampling.temperature = std::max(static_cast<float>(temperature), 1e-5F);
    sampling.top_p = std::max(static_cast<float>(top_p), 1e-6F);
    set_top_k(top_k, model, sampling);
    sampling.typical_p = std::max(static_cast<float>(typical_p), 1e-6F);
  }
  const double penalty =
      fields.number("repetition_penalty", 0, kMaxRepetitionPenalty, true).value_or(1);
  sampling.repetition_penalty = std::max(static_cast<float>(penalty), 1e-6F);
  set_seed(kDefaultSeed, request);
  read_seed(fields, request);
}

NewTokens read_config(FieldReader& fields, const RequestContext& context, const ServedModel& model,
                      ParsedRequest& request) {
  read_sampling(fields, model, request);
  read_beams(fields, context, request);
  NewTokens tokens;
  tokens.max = fields.integer("max_new_tokens", 1, kMaxCount).value_or(kDefaultNewTokens);
  tokens.min = fields.integer("min_new_tokens", 0, kMaxCount).value_or(1);
  if (tokens.min > tokens.max) {
    fields.fail("min_new_tokens", "is " + std::to_string(tokens.min) +
                                      ", above 'max_new_tokens', which is " +
                                      std::to_string(tokens.max));
  }
  const std::int64_t last = static_cast<std::int64_t>(model.tokenizer->vocab_size()) - 1;
  if (const auto eos = fields.integer("eos_token_id", 0, last)) {
    request.sampling.stop_ids = {static_cast<Token>(*eos)};
  }
  fields.integer("pad_token_id", 0, last);  // nothing is padded here
  return tokens;
}

const std::vector<std::string> kNumbers = {"num_beams",
                                           "num_return_sequences",
                                           "max_new_tokens",
                                           "min_new_tokens",
                                           "temperature",
                                           "top_p",
                                           "top_k",
                                           "typical_p",
                                           "repetition_penalty",
                                           "seed"};

ParseOutcome parse_completion_task(std::string_view body, const RequestContext& context,
                                   const ServedModel& model) {
  auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  const auto name = fields.string("model");
  const auto prompt = fields.string("prompt");
  if (fields.ok() && !name) fields.fail("model", "is missing");
  if (fields.ok() && !prompt) fields.fail("prompt", "is missing");
  Json config = object_or_empty(fields, "generation_config");
  coerce_words(config, {"do_sample", "early_stopping"}, kNumbers);
  FieldReader inner(config, "generation_config");
  ParsedRequest request = begin_request(context, model);
  const NewTokens tokens = read_config(inner, context, model, request);
  if (inner.finish()) fields.fail(*inner.finish());
  if (const auto& error = fields.finish()) return refused(*error);
  // The tutorial's load test names no model when it asks a server itself.
  if (!name->empty() && *name != model.name) return unknown_model(*name, model);
  const Status status = add_prompt(*prompt, tokens, context, model, request);
  if (!status.ok()) return prompt_error(status, "prompt");
  request.reply = std::make_unique<CompletionReply>(request.choices);
  return request;
}

/// The tutorial hands a chat on to OpenAI, so that its fields are a few of that API's, with another
/// default length.
ParseOutcome parse_chat_task(std::string_view body, const RequestContext& context,
                             const ServedModel& model) {
  auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  for (const char* name : {"model", "messages", "n", "max_tokens", "temperature", "top_p", "stream",
                           "stop", "presence_penalty", "frequency_penalty", "logit_bias", "user"}) {
    fields.take(name);
  }
  for (const char* name : {"model", "messages"}) {
    if (fields.ok() && fields.take(name) == nullptr) fields.fail(name, "is missing");
  }
  if (const auto& error = fields.finish()) return refused(*error);
  if (fields.take("max_tokens") == nullptr) json.value()["max_tokens"] = kDefaultNewTokens;
  return parse_chat_completion(json.value().dump(), context, model);
}

Page model_id_page(const PageFacts&, const ServedModel& model) {
  return Answer{json_string(model.name)};
}

class Tutorial : public Dialect {
 public:
  const char* name() const override { return "tutorial"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/completion/v1", &parse_completion_task, ModelNamed::in_body},
            {"POST", "/completion/v2", &parse_completion_task, ModelNamed::in_body},
            {"POST", "/chat_completion/v1", &parse_chat_task, ModelNamed::in_body},
            {"GET", "/model_id", &model_id_page}};
  }
  HttpError shape(HttpError error) const override { return fastapi_error(std::move(error)); }
};

}  // namespace
}  // namespace tutorial

const Dialect& tutorial_dialect() {
  static const tutorial::Tutorial kDialect;
  return kDialect;
}

}  // namespace baton
