#include "frontend/dialects/lightllm.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "frontend/chat/ordered_json.h"
#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"
#include "frontend/openai/grammar_fields.h"

namespace baton {
namespace lightllm {
namespace {

using Json = nlohmann::json;
using Page = std::variant<Answer, HttpError>;

constexpr std::int64_t kDefaultNewTokens = 16;

/// `more`: further members.
std::string token_json(const ShownToken& token, const std::string& more = {}) {
  return "{\"id\":" + std::to_string(token.id) + ",\"text\":" + json_string(token.text) +
         ",\"logprob\":" + logprob_json(token.logprob) +
         ",\"special\":" + bool_json(token.special) + more + "}";
}

std::string reason_json(const Ending& ending) {
  return "\"" + std::string(to_string(ending.reason)) + "\"";
}

/// {"message": ...}
std::string message_json(const std::string& message) {
  return "{\"message\":" + json_string(message) + "}";
}

/// {"generated_text": [text], "count_output_tokens", "finish_reason", "prompt_tokens"}, and with
/// return_details each token.
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
  std::string end(std::uint32_t, const Ending& ending) override {
    ending_ = ending;
    return {};
  }
  std::string finish(const Usage& usage) override {
    std::string body = "{\"generated_text\":[" + json_string(text_) +
                       "],\"count_output_tokens\":" + std::to_string(usage.completion_tokens) +
                       ",\"finish_reason\":" + reason_json(ending_) +
                       ",\"prompt_tokens\":" + std::to_string(usage.prompt_tokens);
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
  Ending ending_;
};

/// One event a token; the last one says that it is.
class StreamReply : public ReplyWriter {
 public:
  StreamReply(std::shared_ptr<const Tokenizer> tokenizer, std::size_t prompt_tokens)
      : tokenizer_(std::move(tokenizer)), prompt_tokens_(prompt_tokens) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    if (piece.token < 0) {  // it was held back: it goes with the last token
      waits_.text += piece.text;
      waiting_ = true;
      return {};
    }
    waits_ = shown_token(piece, *tokenizer_);
    waiting_ = piece.last;
    ++count_;
    return waiting_ ? "" : event(false, "null");
  }
  std::string end(std::uint32_t, const Ending& ending) override {
    ending_ = ending;
    return {};
  }
  std::string finish(const Usage&) override {
    if (!waiting_) waits_.text.clear();
    return event(true, reason_json(ending_));
  }
  std::string fail(const Status& status) override {
    return "data:" + message_json(status.message()) + "\n\n";
  }

 private:
  std::string event(bool finished, const std::string& reason) const {
    const std::string counts = ",\"count_output_tokens\":" + std::to_string(count_) +
                               ",\"prompt_tokens\":" + std::to_string(prompt_tokens_);
    return "data:{\"token\":" + token_json(waits_, counts) +
           ",\"generated_text\":null,\"finished\":" + bool_json(finished) +
           ",\"finish_reason\":" + reason + ",\"details\":null}\n\n";
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::size_t prompt_tokens_;
  std::uint32_t count_ = 0;
  Ending ending_;
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

NewTokens read_lengths(FieldReader& fields) {
  NewTokens tokens;
  tokens.max = fields.integer("max_new_tokens", 1, kMaxCount).value_or(kDefaultNewTokens);
  tokens.min = fields.integer("min_new_tokens", 1, kMaxCount).value_or(1);
  if (tokens.min > tokens.max) fields.fail("min_new_tokens", "is above 'max_new_tokens'");
  tokens.specials = fields.boolean("add_special_tokens").value_or(true);
  return tokens;
}

bool is_empty(const Json& value) {
  return value.is_null() || value == "" || (value.is_array() && value.empty());
}

/// What may be drawn: a grammar, or some tokens. Empty values ask for nothing. `text` is that of
/// the parameters.
void read_constraints(FieldReader& fields, const Json& parameters, std::string_view text,
                      const RequestContext& context, const ServedModel& model,
                      ParsedRequest& request) {
  std::vector<std::pair<std::string, std::string>> kinds;
  for (const auto& [what, name] :
       {std::pair("regex", "regular_constraint"), std::pair("grammar", "guided_grammar"),
        std::pair("json", "guided_json")}) {
    fields.take(name);
    if (parameters.contains(name) && !is_empty(parameters[name])) kinds.emplace_back(what, name);
  }
  read_named_grammars(fields, kinds, text, context.schemas, request);
  const Json* allowed = fields.take("allowed_token_ids");
  if (allowed != nullptr && !allowed->empty()) read_allowed_tokens(fields, model, request.sampling);
}

/// What that server takes and Baton does not do, and what has no effect on a reply here.
void read_rest(FieldReader& fields) {
  refuse_unless(fields, "best_of", 1, "a reply has one text");
  refuse_unless(fields, "n", 1, "a reply has one text");
  refuse_unless(fields, "input_penalty", false, "penalties count as they do in the OpenAI API");
  refuse_unless(fields, "print_eos_token", false, "the end of a text is told by finish_reason");
  refuse_unless(fields, "exponential_decay_length_penalty", Json::array({1, 1.0}),
                "lengths are bounded by max_new_tokens");
  for (const char* harmless : {"add_spaces_between_special_tokens", "image_max_patch_num",
                               "group_request_id", "suggested_dp_index"}) {
    fields.take(harmless);
  }
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
  const bool ignore_eos = inner.boolean("ignore_eos").value_or(false);
  const NewTokens tokens = read_lengths(inner);
  // A schema's keys keep their order, which only the text of the body tells.
  const std::string text = copy_members(body, {"parameters"}, SpecialGuard())["parameters"];
  read_constraints(inner, parameters, text, context, model, request);
  // What holds to a grammar must be able to end where that is complete.
  if (ignore_eos && request.sampling.grammar_kind == GrammarKind::none)
    request.sampling.stop_ids.clear();
  request.skip_special_tokens = inner.boolean("skip_special_tokens").value_or(true);
  const bool details = inner.boolean("return_details").value_or(false);
  read_rest(inner);
  if (inner.finish()) fields.fail(*inner.finish());
  if (const auto& error = fields.finish()) return refused(*error);
  const Status status = add_prompt(*inputs, tokens, context, model, request);
  if (!status.ok()) return prompt_error(status, "inputs");
  if (stream || details) request.sampling.logprobs = 0;
  request.stream = stream;
  if (stream) {
    request.reply = std::make_unique<StreamReply>(model.tokenizer, request.prompts.front().size());
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

/// {"text", "parameters"}: {"ntokens"}
ParseOutcome parse_tokens(std::string_view body, const RequestContext& context,
                          const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  const auto text = required_string(fields, "text");
  refuse_unless(fields, "multimodal_params", Json::object(),
                "this server's model reads text alone");
  const Json parameters = object_or_empty(fields, "parameters");
  FieldReader inner(parameters, "parameters");
  const bool specials =
      inner.boolean("add_special_tokens").value_or(true);  // of the others none counts here
  if (!inner.ok()) fields.fail(*inner.finish());
  if (const auto& error = fields.finish()) return refused(*error);
  if (context.max_context == 0) return http_error(far_too_long(context));
  const auto ids = encode_prompt(*text, specials, context, model);
  if (!ids) return http_error(far_too_long(context), "text");
  return Answer{"{\"ntokens\":" + std::to_string(ids->size()) + "}"};
}

std::string model_name_json(const ServedModel& model) {
  return "{\"model_name\":" + json_string(model.name) + "}";
}

/// Its body, if there is one, says nothing.
ParseOutcome parse_model_name(std::string_view, const RequestContext&, const ServedModel& model) {
  return Answer{model_name_json(model)};
}
Page model_name_page(const PageFacts&, const ServedModel& model) {
  return Answer{model_name_json(model)};
}

/// The part of all pools that is in use. What requests will need at most is not told: it is the
/// present load.
Page token_load_page(const PageFacts& facts, const ServedModel&) {
  const double load = facts.pool_tokens == 0 ? 0
                                             : static_cast<double>(facts.used_tokens) /
                                                   static_cast<double>(facts.pool_tokens);
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", load);
  std::string body;
  for (const char* name : {"current_load", "logical_max_load", "dynamic_max_load"}) {
    body += (body.empty() ? "{\"" : ",\"") + std::string(name) + "\":" + text;
  }
  return Answer{body + "}"};
}

class LightLlm : public Dialect {
 public:
  const char* name() const override { return "lightllm"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/generate", &parse_whole},
            {"POST", "/generate_stream", &parse_stream},
            {"POST", "/tokens", &parse_tokens},
            {"POST", "/get_model_name", &parse_model_name},
            {"GET", "/get_model_name", &model_name_page},
            {"GET", "/token_load", &token_load_page}};
  }
  HttpError shape(HttpError error) const override {
    error.body = message_json(error.message);
    return error;
  }
};

}  // namespace
}  // namespace lightllm

const Dialect& lightllm_dialect() {
  static const lightllm::LightLlm kDialect;
  return kDialect;
}

}  // namespace baton
