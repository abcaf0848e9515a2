#include "frontend/dialects/mindspore.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"

namespace baton {
namespace mindspore {
namespace {

using Json = nlohmann::json;
using Page = std::variant<Answer, HttpError>;

constexpr const char* kEvents = "text/event-stream; charset=utf-8";
constexpr std::int64_t kDefaultTopK = 3;
constexpr std::int64_t kMostTopK = 100;
constexpr double kLeastTopP = 0.01;
constexpr double kLeastTemperature = 1e-5;
constexpr double kMostTemperature = 65'536;
constexpr std::int64_t kDefaultNewTokens = 300;

/// How a reply is written down.
struct Form {
  bool stream = false;
  bool sse = true;   // a stream's lines are events; else "data:" and the bare object
  bool full = true;  // a stream ends with a line that repeats everything
  std::int64_t seed = 0;
};

std::string token_json(const ShownToken& token) {
  return "{\"id\":" + std::to_string(token.id) + ",\"logprob\":" + logprob_json(token.logprob) +
         ",\"special\":" + bool_json(token.special) + ",\"text\":" + json_string(token.text) + "}";
}

/// One line of a stream.
std::string line(const Form& form, const std::string& object) {
  if (!form.sse) return "data:" + object + "\n";
  return "{\"event\":\"message\",\"retry\":30000,\"data\":[" + object + "]}\n";
}

/// What a reply holds at its end.
struct Ended {
  std::string text;
  std::string reason;
  std::uint32_t count = 0;
  std::string first;   // token, or empty
  std::string tokens;  // separated by commas
};

std::string last_object(const Form& form, const Ended& ended) {
  const std::string rest =
      "\"generated_text\":" + json_string(ended.text) +
      ",\"finish_reason\":" + json_string(ended.reason) +
      ",\"generated_tokens\":" + std::to_string(ended.count) + ",\"prefill\":[" + ended.first +
      "],\"seed\":" + std::to_string(form.seed) + ",\"tokens\":[" + ended.tokens + "],";
  const std::string tops = "\"top_tokens\":[[" + ended.first + "]]";
  if (form.stream && form.sse) return "{\"details\":null," + rest + tops + "}";
  return "{" + rest + tops + ",\"details\":null}";
}

/// A reply that says only why there is none.
std::string told_error(const Form& form, const std::string& text, const std::string& reason) {
  const std::string token = token_json({.id = 0, .text = text, .logprob = 0.0F, .special = false});
  const std::string last = last_object(form, {text, reason, 0, token, token});
  if (!form.stream) return last + "\n";
  std::string lines = line(form, "{\"details\":null,\"generated_text\":" + json_string(text) +
                                     ",\"tokens\":" + token + ",\"top_tokens\":[" + token + "]}");
  return lines + line(form, last);
}

std::string failure_text(const std::string& message) { return "error304: " + message; }

class MindSporeReply : public ReplyWriter {
 public:
  MindSporeReply(Form form, std::shared_ptr<const Tokenizer> tokenizer)
      : form_(form), tokenizer_(std::move(tokenizer)) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }

  std::string text(const ReplyPiece& piece) override {
    // What ends a sequence is no text; text that was held back counts to the last token.
    if (piece.token >= 0 && piece.text.empty() && is_end(piece.token)) return {};
    ShownToken token = shown_token(piece, *tokenizer_);
    if (piece.token < 0) {
      token.id = last_.id;
      token.logprob = last_.logprob;
    }
    last_ = token;
    const std::string json = token_json(token);
    ended_.text += piece.text;
    ended_.tokens += (ended_.tokens.empty() ? "" : ",") + json;
    if (ended_.first.empty()) ended_.first = json;
    if (!form_.stream) return {};
    return line(form_, "{\"details\":null,\"generated_text\":" + json_string(piece.text) +
                           ",\"tokens\":" + json + ",\"top_tokens\":[" + json + "]}");
  }

  std::string end(std::uint32_t, const Ending& ending) override {
    ended_.reason = ending.reason == FinishReason::length ? "length" : "eos";
    return {};
  }

  std::string finish(const Usage& usage) override {
    ended_.count = usage.completion_tokens;
    if (!form_.stream) return last_object(form_, ended_) + "\n";
    return form_.full ? line(form_, last_object(form_, ended_)) : "";
  }

  std::string fail(const Status& status) override {
    return told_error(form_, failure_text(status.message()), "predict_failed");
  }

 private:
  bool is_end(Token token) const {
    const auto& ends = tokenizer_->eos_ids();
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  Form form_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Ended ended_;
  ShownToken last_;
};

/// The values that this API mends rather than refuses.
void read_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const double huge = std::numeric_limits<double>::max();
  const std::int64_t vocab = model.tokenizer->vocab_size();
  bool sample = fields.boolean("do_sample").value_or(true);
  std::int64_t top_k = fields.integer("top_k", INT64_MIN, INT64_MAX).value_or(kDefaultTopK);
  if (top_k <= 0 || top_k >= vocab) top_k = 1;
  const double top_p = fields.number("top_p", -huge, huge).value_or(1);
  double temperature = fields.number("temperature", -huge, huge).value_or(1);
  if (!(temperature > kLeastTemperature && temperature <= kMostTemperature)) {
    temperature = 1;
    sample = false;
  }
  // Read in any case: a wrong type is an error also where it does not matter.
  const double typical_p = fields.number("typical_p", 0, 1).value_or(0);
  if (!sample) return;
  sampling.temperature = static_cast<float>(temperature);
  set_top_k(std::min(top_k, kMostTopK), model, sampling);
  sampling.top_p = static_cast<float>(std::clamp(top_p, kLeastTopP, 1.0));
  if (typical_p > 0) sampling.typical_p = static_cast<float>(typical_p);
}

/// What that server takes and does nothing about; the type is checked.
void read_ignored(FieldReader& fields) {
  for (const char* name : {"decoder_input_details", "details", "truncate", "watermark"}) {
    fields.boolean(name);
  }
  fields.integer("top_n_tokens", 0, kMaxCount);
  fields.take("topk_k");  // a slip of the published load generator
}

std::int64_t read_parameters(FieldReader& fields, const ServedModel& model, ParsedRequest& request,
                             Form& form) {
  read_sampling(fields, model, request);
  SamplingParams& sampling = request.sampling;
  const auto penalty = fields.number("repetition_penalty", 0, kMaxRepetitionPenalty, true);
  sampling.repetition_penalty = std::max(static_cast<float>(penalty.value_or(1)), 1e-6F);
  form.seed = fields.integer("seed", 0, INT64_MAX).value_or(0);
  if (form.seed != 0) set_seed(form.seed, request);
  read_stop(fields, "stop", request);
  form.full = fields.boolean("return_full_text").value_or(true);
  form.sse = fields.string("return_protocol").value_or("sse") == "sse";
  read_ignored(fields);
  return fields.integer("max_new_tokens", 1, kMaxCount).value_or(kDefaultNewTokens);
}

/// A prompt that cannot be served is told in a reply of status 200; the rest are errors.
ParseOutcome told_prompt_error(const Status& status, const Form& form) {
  std::string body;
  if (status.code() == ErrorCode::too_long) {
    body = told_error(form, "Error202: prompt out of range", "prompt_out_of_range");
  } else if (status.code() == ErrorCode::invalid_argument) {
    body = told_error(form, "Error203: prompt token empty", "prompt_token_ids_empty");
  } else {
    return http_error(status);
  }
  return Answer{std::move(body), form.stream ? kEvents : "application/json"};
}

enum class Route : std::uint8_t { by_field, whole, stream };

ParseOutcome parse(std::string_view body, Route route, const RequestContext& context,
                   const ServedModel& model) {
  auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  coerce_words(json.value(), {"stream"}, {});
  FieldReader fields(json.value());
  const auto inputs = required_string(fields, "inputs");
  const bool wants_stream = fields.boolean("stream").value_or(false);
  Json parameters = object_or_empty(fields, "parameters");
  coerce_words(parameters,
               {"do_sample", "return_full_text", "decoder_input_details", "details", "truncate",
                "watermark"},
               {"top_k", "top_p", "temperature", "repetition_penalty", "max_new_tokens", "seed",
                "typical_p", "top_n_tokens"});
  FieldReader inner(parameters, "parameters");
  Form form;
  form.stream = route == Route::stream || (route == Route::by_field && wants_stream);
  ParsedRequest request = begin_request(context, model);
  const std::int64_t max = read_parameters(inner, model, request, form);
  if (inner.finish()) fields.fail(*inner.finish());
  if (const auto& error = fields.finish()) return refused(*error);
  const Status status = add_prompt(*inputs, {.max = max}, context, model, request);
  if (!status.ok()) return told_prompt_error(status, form);
  request.sampling.logprobs = 0;
  request.stream = form.stream;
  request.reply = std::make_unique<MindSporeReply>(form, model.tokenizer);
  return request;
}

ParseOutcome parse_by_field(std::string_view body, const RequestContext& context,
                            const ServedModel& model) {
  return parse(body, Route::by_field, context, model);
}
ParseOutcome parse_whole(std::string_view body, const RequestContext& context,
                         const ServedModel& model) {
  return parse(body, Route::whole, context, model);
}
ParseOutcome parse_stream(std::string_view body, const RequestContext& context,
                          const ServedModel& model) {
  return parse(body, Route::stream, context, model);
}

Page count_page(std::uint32_t count) {
  return Answer{"{\"event\":\"message\",\"retry\":30000,\"data\":" + std::to_string(count) + "}\n",
                kEvents};
}

/// Sequences that are being served now.
Page batch_page(const PageFacts& facts, const ServedModel&) {
  return count_page(facts.running - std::min(facts.waiting, facts.running));
}

Page requests_page(const PageFacts& facts, const ServedModel&) { return count_page(facts.running); }

Page model_page(const PageFacts& facts, const ServedModel& model) {
  const std::string context = std::to_string(facts.max_context);
  const std::uint64_t all = std::uint64_t{facts.max_context} * facts.max_batch;
  return Answer{"{\"docker_label\":\"\",\"max_batch_total_tokens\":" + std::to_string(all) +
                    ",\"max_concurrent_requests\":" + std::to_string(facts.max_streams) +
                    ",\"max_input_length\":" + context + ",\"max_total_tokens\":" + context +
                    ",\"model_device_type\":null,\"model_dtype\":null,\"model_id\":" +
                    json_string(model.name) +
                    ",\"model_pipeline_tag\":\"text-generation\",\"version\":" +
                    json_string(facts.version) + "}\n",
                kEvents};
}

class MindSpore : public Dialect {
 public:
  const char* name() const override { return "mindspore"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/models/llama2", &parse_by_field},
            {"POST", "/models/llama2/generate", &parse_whole},
            {"POST", "/models/llama2/generate_stream", &parse_stream},
            {"POST", "/models/internlm", &parse_by_field},
            {"POST", "/models/internlm/generate", &parse_whole},
            {"POST", "/models/internlm/generate_stream", &parse_stream},
            {"GET", "/serving/get_bs", &batch_page},
            {"GET", "/serving/get_request_numbers", &requests_page},
            {"GET", "/serving/get_serverd_model_info", &model_page}};
  }
  /// A request that failed while it ran is told in a reply, too.
  HttpError shape(HttpError error) const override {
    const bool failed = error.code == to_string(ErrorCode::worker_crashes) ||
                        error.code == to_string(ErrorCode::kv_exhausted) ||
                        error.code == to_string(ErrorCode::internal);
    if (!failed) return fastapi_error(std::move(error));
    error.status = 200;
    error.body =
        told_error({.stream = error.stream}, failure_text(error.message), "predict_failed");
    return error;
  }
};

}  // namespace
}  // namespace mindspore

const Dialect& mindspore_dialect() {
  static const mindspore::MindSpore kDialect;
  return kDialect;
}

}  // namespace baton
