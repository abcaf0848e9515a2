#include "frontend/dialects/lightllm.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kDefaultNewTokens = 16;

std::string token_json(const ShownToken& token) {
  return "{\"id\":" + std::to_string(token.id) + ",\"text\":" + json_string(token.text) +
         ",\"logprob\":" + logprob_json(token.logprob) +
         ",\"special\":" + bool_json(token.special) + "}";
}

/// {"message": ...}
std::string message_json(const std::string& message) {
  return "{\"message\":" + json_string(message) + "}";
}

/// {"generated_text": [text], "count_output_tokens"}, and with return_details each token.
class WholeReply : public ReplyWriter {
 public:
  WholeReply(bool details, std::shared_ptr<const Tokenizer> tokenizer)
      : details_(details), tokenizer_(std::move(tokenizer)) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    text_ += piece.text;
    if (!details_) return {};
    if (piece.token >= 0) {
      tokens_.push_back(shown_token(piece, *tokenizer_));
    } else if (!tokens_.empty()) {
      tokens_.back().text += piece.text;
    }
    return {};
  }
  std::string end(std::uint32_t, const Ending&) override { return {}; }
  std::string finish(const Usage& usage) override {
    std::string body = "{\"generated_text\":[" + json_string(text_) +
                       "],\"count_output_tokens\":" + std::to_string(usage.completion_tokens);
    if (details_) {
      std::string list;
      for (const ShownToken& token : tokens_) list += (list.empty() ? "" : ",") + token_json(token);
      body += ",\"tokens\":[" + list + "]";
    }
    return body + "}";
  }
  std::string fail(const Status& status) override { return message_json(status.message()); }

 private:
  bool details_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string text_;
  std::vector<ShownToken> tokens_;
};

/// One event a token; the last one says that it is.
class StreamReply : public ReplyWriter {
 public:
  explicit StreamReply(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    if (piece.token < 0) {  // it was held back: it goes with the last token
      waits_.text += piece.text;
      waiting_ = true;
      return {};
    }
    waits_ = shown_token(piece, *tokenizer_);
    waiting_ = piece.last;
    return waiting_ ? "" : event(false);
  }
  std::string end(std::uint32_t, const Ending&) override { return {}; }
  std::string finish(const Usage&) override {
    if (!waiting_) waits_.text.clear();
    return event(true);
  }
  std::string fail(const Status& status) override {
    return "data:" + message_json(status.message()) + "\n\n";
  }

 private:
  std::string event(bool finished) const {
    return "data:{\"token\":" + token_json(waits_) +
           ",\"generated_text\":null,\"finished\":" + bool_json(finished) +
           ",\"details\":null}\n\n";
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  ShownToken waits_;
  bool waiting_ = false;
};

void read_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const bool sample = fields.boolean("do_sample").value_or(false);
  const double temperature = fields.number("temperature", 0, 100, true).value_or(1);
  const double top_p = fields.number("top_p", 0, 1, true).value_or(1);
  const std::int64_t top_k = fields.integer("top_k", -1, kMaxCount).value_or(-1);
  if (sample) {
    sampling.temperature = std::max(static_cast<float>(temperature), 1e-5F);
    sampling.top_p = std::max(static_cast<float>(top_p), 1e-6F);
    set_top_k(top_k, model, sampling);
  }
  const auto penalty = [&](const char* name, double low, double high, double neutral,
                           float& value) {
    value = static_cast<float>(fields.number(name, low, high).value_or(neutral));
  };
  penalty("presence_penalty", 0, kMaxPenalty, 0, sampling.presence_penalty);
  penalty("frequency_penalty", 0, kMaxPenalty, 0, sampling.frequency_penalty);
  penalty("repetition_penalty", 1, kMaxRepetitionPenalty, 1, sampling.repetition_penalty);
}

ParseOutcome parse(std::string_view body, bool stream, const RequestContext& context,
                   const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  const auto inputs = required_string(fields, "inputs");
  refuse_unless(fields, "multimodal_params", Json::object(),
                "this server's model reads text alone");
  const Json parameters = object_or_empty(fields, "parameters");
  FieldReader inner(parameters, "parameters");
  ParsedRequest request = begin_request(context, model);
  read_sampling(inner, model, request);
  read_stop(inner, "stop_sequences", request);
  if (inner.boolean("ignore_eos").value_or(false)) request.sampling.stop_ids.clear();
  const bool details = inner.boolean("return_details").value_or(false);
  const auto max = inner.integer("max_new_tokens", 1, kMaxCount).value_or(kDefaultNewTokens);
  if (inner.finish()) fields.fail(*inner.finish());
  if (const auto& error = fields.finish()) return refused(*error);
  const Status status = add_prompt(*inputs, {.max = max}, context, model, request);
  if (!status.ok()) return prompt_error(status, "inputs");
  if (stream || details) request.sampling.logprobs = 0;
  request.stream = stream;
  if (stream) {
    request.reply = std::make_unique<StreamReply>(model.tokenizer);
  } else {
    request.reply = std::make_unique<WholeReply>(details, model.tokenizer);
  }
  return request;
}

ParseOutcome parse_whole(std::string_view body, const RequestContext& context,
                         const ServedModel& model) {
  return parse(body, false, context, model);
}
ParseOutcome parse_stream(std::string_view body, const RequestContext& context,
                          const ServedModel& model) {
  return parse(body, true, context, model);
}

class LightLlm : public Dialect {
 public:
  const char* name() const override { return "lightllm"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/generate", &parse_whole}, {"POST", "/generate_stream", &parse_stream}};
  }
  HttpError shape(HttpError error) const override {
    error.body = message_json(error.message);
    return error;
  }
};

}  // namespace

const Dialect& lightllm_dialect() {
  static const LightLlm kDialect;
  return kDialect;
}

}  // namespace baton
