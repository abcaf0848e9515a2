#include "frontend/dialects/tgi.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "frontend/chat/ordered_json.h"
#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"
#include "frontend/openai/grammar_fields.h"
#include "frontend/openai/openai_api.h"
#include "frontend/openai/tokenize_api.h"

namespace baton {
namespace tgi {
namespace {

using Json = nlohmann::json;
using Page = std::variant<Answer, HttpError>;

constexpr std::int64_t kDefaultNewTokens = 100;
constexpr std::int64_t kMaxTopTokens = 5;
constexpr std::int64_t kMaxBestOf = 2;

std::string token_json(const ShownToken& token) {
  return "{\"id\":" + std::to_string(token.id) + ",\"text\":" + json_string(token.text) +
         ",\"logprob\":" + logprob_json(token.logprob) +
         ",\"special\":" + bool_json(token.special) + "}";
}

/// What a reply needs besides its tokens.
struct Facts {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string full_prefix;  // the prompt, with return_full_text
  std::vector<Token> prompt;
  bool details = false;
  bool prefill = false;
  std::uint32_t top_tokens = 0;
  std::string seed = "null";
  std::uint32_t choices = 1;
  bool listed = false;  // the whole reply is a list of one
};

/// Tokens and text of one choice.
class Sequence {
 public:
  void add(const ReplyPiece& piece, const Facts& facts) {
    text += piece.text;
    if (piece.token < 0) {
      if (!shown.empty()) shown.back().text += piece.text;
      return;
    }
    shown.push_back(shown_token(piece, *facts.tokenizer));
    if (piece.logprobs != nullptr) sum += piece.logprobs->logprob;
    if (facts.top_tokens > 0) tops.push_back(tops_json(piece, facts));
  }
  double mean() const { return shown.empty() ? 0 : sum / static_cast<double>(shown.size()); }
  const char* reason() const {
    if (ending.reason == FinishReason::length) return "length";
    return ending.stop_string ? "stop_sequence" : "eos_token";
  }

  std::string text;
  std::vector<ShownToken> shown;
  std::vector<std::string> tops;
  std::string prefill;  // entries
  Ending ending;
  double sum = 0;

 private:
  static std::string tops_json(const ReplyPiece& piece, const Facts& facts) {
    std::string list;
    for (std::size_t i = 0; piece.logprobs != nullptr && i < piece.logprobs->top_tokens.size();
         ++i) {
      const Token id = piece.logprobs->top_tokens[i];
      list += (i == 0 ? "" : ",") +
              token_json({id, facts.tokenizer->token_text(id), piece.logprobs->top_logprobs[i],
                          facts.tokenizer->is_special(id)});
    }
    return "[" + list + "]";
  }
};

std::string joined(const std::vector<std::string>& items) {
  std::string list;
  for (const std::string& item : items) list += (list.empty() ? "" : ",") + item;
  return list;
}

std::string sequence_members(const Sequence& sequence, const Facts& facts) {
  std::string tokens;
  for (const ShownToken& token : sequence.shown) {
    tokens += (tokens.empty() ? "" : ",") + token_json(token);
  }
  return "\"finish_reason\":\"" + std::string(sequence.reason()) +
         "\",\"generated_tokens\":" + std::to_string(sequence.shown.size()) +
         ",\"seed\":" + facts.seed + ",\"prefill\":[" + sequence.prefill + "],\"tokens\":[" +
         tokens + "]" +
         (facts.top_tokens > 0 ? ",\"top_tokens\":[" + joined(sequence.tops) + "]" : "");
}

class WholeReply : public ReplyWriter {
 public:
  explicit WholeReply(Facts facts) : facts_(std::move(facts)), sequences_(facts_.choices) {}

  std::string begin(std::uint32_t choice, const Logprobs* logprobs) override {
    if (!facts_.prefill) return {};
    const Logprobs none;
    LogprobReader reader(logprobs == nullptr ? none : *logprobs);
    for (std::uint32_t i = 0; i < facts_.prompt.size(); ++i) {
      LogprobReader::Entry entry;
      const bool told = reader.take(i, entry);
      sequences_[choice].prefill +=
          (i == 0 ? "{\"id\":" : ",{\"id\":") + std::to_string(facts_.prompt[i]) +
          ",\"text\":" + json_string(facts_.tokenizer->token_text(facts_.prompt[i])) +
          ",\"logprob\":" + logprob_json(told ? std::optional(entry.logprob) : std::nullopt) + "}";
    }
    return {};
  }
  std::string text(const ReplyPiece& piece) override {
    sequences_[piece.choice].add(piece, facts_);
    return {};
  }
  std::string end(std::uint32_t choice, const Ending& ending) override {
    sequences_[choice].ending = ending;
    return {};
  }
  std::string finish(const Usage&) override {
    std::stable_sort(sequences_.begin(), sequences_.end(),
                     [](const Sequence& a, const Sequence& b) { return a.mean() > b.mean(); });
    const Sequence& best = sequences_.front();
    std::string body = "{\"generated_text\":" + json_string(facts_.full_prefix + best.text);
    if (facts_.details) {
      body += ",\"details\":{" + sequence_members(best, facts_);
      if (sequences_.size() > 1) body += ",\"best_of_sequences\":[" + others() + "]";
      body += "}";
    }
    return facts_.listed ? "[" + body + "}]" : body + "}";
  }
  std::string fail(const Status& status) override { return error_json(status); }

 private:
  std::string others() const {
    std::vector<std::string> list;
    for (std::size_t i = 1; i < sequences_.size(); ++i) {
      list.push_back("{\"generated_text\":" + json_string(facts_.full_prefix + sequences_[i].text) +
                     "," + sequence_members(sequences_[i], facts_) + "}");
    }
    return joined(list);
  }

  Facts facts_;
  std::vector<Sequence> sequences_;
};

HttpError tgi_error(HttpError error) {
  std::string type = "validation";
  std::string message = error.message;
  if (error.status == 429 || error.status == 503) {
    type = "overloaded";
  } else if (error.status >= 500 && error.status != 501) {
    type = "generation";
    message = "Request failed during generation: " + message;
    error.status = error.status == 504 ? 504 : 424;
  } else if (error.status == 400) {
    error.status = 422;
    message = "Input validation error: " + message;
  }
  error.body = "{\"error\":" + json_string(message) + ",\"error_type\":\"" + type + "\"}";
  return error;
}

/// One event a token. The last token's event also has the whole text, so that it waits for the end.
class StreamReply : public ReplyWriter {
 public:
  explicit StreamReply(Facts facts) : facts_(std::move(facts)) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    text_ += piece.text;
    if (piece.token < 0) {  // it was held back: it goes with the last token
      waits_.text += piece.text;
      waiting_ = true;
      return {};
    }
    waits_ = shown_token(piece, *facts_.tokenizer);
    tops_ = {};
    if (facts_.top_tokens > 0) {
      Sequence one;
      one.add(piece, facts_);
      tops_ = ",\"top_tokens\":" + joined(one.tops);
    }
    ++count_;
    waiting_ = piece.last;
    return waiting_ ? "" : event("null", "null");
  }
  std::string end(std::uint32_t, const Ending& ending) override {
    ending_ = ending;
    return {};
  }
  std::string finish(const Usage& usage) override {
    if (!waiting_) ++count_;  // nobody knew that the last token was the last: one more, of no text
    if (!waiting_) waits_.text.clear();
    Sequence sequence;
    sequence.ending = ending_;
    const std::string details =
        "{\"finish_reason\":\"" + std::string(sequence.reason()) +
        "\",\"generated_tokens\":" + std::to_string(usage.completion_tokens) +
        ",\"seed\":" + facts_.seed + ",\"input_length\":" + std::to_string(usage.prompt_tokens) +
        "}";
    return event(json_string(facts_.full_prefix + text_), details);
  }
  std::string fail(const Status& status) override {
    return "data:" + tgi_error(http_error(status)).body + "\n\n";
  }

 private:
  std::string event(const std::string& text, const std::string& details) {
    return "data:{\"index\":" + std::to_string(count_) + ",\"token\":" + token_json(waits_) +
           tops_ + ",\"generated_text\":" + text + ",\"details\":" + details + "}\n\n";
  }

  Facts facts_;
  std::string text_;
  ShownToken waits_;
  std::string tops_;
  bool waiting_ = false;
  std::uint32_t count_ = 0;
  Ending ending_;
};

/// Any of the sampling parameters asks for sampling; without one the most probable token is taken.
void read_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const bool asked = fields.boolean("do_sample").value_or(false);
  const auto temperature = fields.number("temperature", 0, 100, true);
  const auto top_p = fields.number("top_p", 0, 1, true);
  const auto top_k = fields.integer("top_k", 1, kMaxCount);
  const auto typical_p = fields.number("typical_p", 0, 1, true);
  if (asked || temperature || top_p || top_k || typical_p) {
    sampling.temperature = std::max(static_cast<float>(temperature.value_or(1)), 1e-5F);
    sampling.top_p = std::max(static_cast<float>(top_p.value_or(1)), 1e-6F);
    set_top_k(top_k.value_or(0), model, sampling);
    sampling.typical_p = std::max(static_cast<float>(typical_p.value_or(1)), 1e-6F);
  }
  const auto penalty = fields.number("repetition_penalty", 0, kMaxRepetitionPenalty, true);
  sampling.repetition_penalty = std::max(static_cast<float>(penalty.value_or(1)), 1e-6F);
  const auto frequency = fields.number("frequency_penalty", -kMaxPenalty, kMaxPenalty);
  sampling.frequency_penalty = static_cast<float>(frequency.value_or(0));
  read_seed(fields, request);
}

NewTokens read_parameters(FieldReader& fields, const ServedModel& model, bool stream,
                          ParsedRequest& request, Facts& facts) {
  read_sampling(fields, model, request);
  if (request.seed_given) facts.seed = std::to_string(request.sampling.seed);
  read_stop(fields, "stop", request);
  request.include_stop_in_output = true;  // as that server has it
  const auto best_of = fields.integer("best_of", 1, kMaxBestOf).value_or(1);
  if (best_of > 1 && stream) fields.fail("best_of", "above 1 cannot be streamed");
  if (best_of > 1 && request.sampling.temperature == 0) {
    fields.fail("best_of", "above 1 needs sampling");
  }
  request.choices = facts.choices = static_cast<std::uint32_t>(best_of);
  facts.details = fields.boolean("details").value_or(false);
  facts.prefill = fields.boolean("decoder_input_details").value_or(false);
  if (facts.prefill && stream) fields.fail("decoder_input_details", "cannot be streamed");
  facts.top_tokens =
      static_cast<std::uint32_t>(fields.integer("top_n_tokens", 0, kMaxTopTokens).value_or(0));
  refuse_unless(fields, "watermark", false, "replies carry no watermark");
  refuse_unless(fields, "adapter_id", nullptr, "there are no adapters");
  NewTokens tokens;
  tokens.keep_last = fields.integer("truncate", 1, kMaxCount).value_or(0);
  tokens.max = fields.integer("max_new_tokens", 1, kMaxCount).value_or(kDefaultNewTokens);
  return tokens;
}

void want_details(bool stream, const Facts& facts, SamplingParams& sampling) {
  if (stream || facts.details || facts.choices > 1) {
    sampling.logprobs = static_cast<std::int32_t>(facts.top_tokens);
  }
  if (facts.details && facts.prefill) sampling.prompt_logprobs = 0;
}

enum class Route : std::uint8_t { root, whole, stream };

ParseOutcome parse(std::string_view body, Route route, const RequestContext& context,
                   const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  const auto inputs = required_string(fields, "inputs");
  const bool wants_stream = fields.boolean("stream").value_or(false);  // else the path says it
  const bool stream = route == Route::stream || (route == Route::root && wants_stream);
  const Json parameters = object_or_empty(fields, "parameters");
  FieldReader inner(parameters, "parameters");
  Facts facts;
  facts.tokenizer = model.tokenizer;
  facts.listed = route == Route::root;
  ParsedRequest request = begin_request(context, model);
  const NewTokens tokens = read_parameters(inner, model, stream, request, facts);
  const bool full = inner.boolean("return_full_text").value_or(false);
  want_details(stream, facts, request.sampling);
  // A schema's keys keep their order, which only the text of the body tells.
  const std::string text = parameters.contains("grammar")
                               ? copy_members(body, {"parameters"}, SpecialGuard())["parameters"]
                               : std::string();
  read_typed_grammar(inner, "grammar", text, context.schemas, request);
  if (inner.finish()) fields.fail(*inner.finish());
  if (const auto& error = fields.finish()) return refused(*error);
  if (request.choices > context.max_choices) {
    return http_error(invalid("best_of is above this server's streams"), "parameters.best_of");
  }
  const Status status = add_prompt(*inputs, tokens, context, model, request);
  if (!status.ok()) return prompt_error(status, "inputs");
  if (full) facts.full_prefix = *inputs;
  facts.prompt = request.prompts.front();
  request.stream = stream;
  if (stream) {
    request.reply = std::make_unique<StreamReply>(std::move(facts));
  } else {
    request.reply = std::make_unique<WholeReply>(std::move(facts));
  }
  return request;
}

ParseOutcome parse_root(std::string_view body, const RequestContext& context,
                        const ServedModel& model) {
  return parse(body, Route::root, context, model);
}
ParseOutcome parse_whole(std::string_view body, const RequestContext& context,
                         const ServedModel& model) {
  return parse(body, Route::whole, context, model);
}
ParseOutcome parse_stream(std::string_view body, const RequestContext& context,
                          const ServedModel& model) {
  return parse(body, Route::stream, context, model);
}

/// SageMaker's one path: what the body holds says which request it is.
ParseOutcome parse_invocation(std::string_view body, const RequestContext& context,
                              const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  RequestContext any = context;
  any.any_model = true;
  if (json.value().contains("messages")) return parse_chat_completion(body, any, model);
  if (json.value().contains("prompt")) return parse_completion(body, any, model);
  return parse(body, Route::root, context, model);
}

Page info_page(const PageFacts& facts, const ServedModel& model) {
  const std::string context = std::to_string(facts.max_context);
  const std::uint64_t all = std::uint64_t{facts.max_context} * facts.max_batch;
  return Answer{
      "{\"model_id\":" + json_string(model.name) +
      ",\"model_sha\":null,\"model_dtype\":null,\"model_device_type\":null,"
      "\"model_pipeline_tag\":\"text-generation\",\"max_concurrent_requests\":" +
      std::to_string(facts.max_streams) + ",\"max_best_of\":" + std::to_string(kMaxBestOf) +
      ",\"max_stop_sequences\":" + std::to_string(kMaxStopStrings) +
      ",\"max_input_length\":" + std::to_string(facts.max_context - (facts.max_context > 0)) +
      ",\"max_total_tokens\":" + context + ",\"max_batch_total_tokens\":" + std::to_string(all) +
      ",\"version\":" + json_string(facts.version) + ",\"sha\":null,\"docker_label\":null}"};
}

class Tgi : public Dialect {
 public:
  const char* name() const override { return "tgi"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/", &parse_root},
            {"POST", "/generate", &parse_whole},
            {"POST", "/generate_stream", &parse_stream},
            {"POST", "/tokenize", &parse_tokenize, ModelNamed::in_body},
            {"POST", "/invocations", &parse_invocation, ModelNamed::in_body},
            {"GET", "/info", &info_page}};
  }
  HttpError shape(HttpError error) const override { return tgi_error(std::move(error)); }
};

}  // namespace
}  // namespace tgi

const Dialect& tgi_dialect() {
  static const tgi::Tgi kDialect;
  return kDialect;
}

}  // namespace baton
