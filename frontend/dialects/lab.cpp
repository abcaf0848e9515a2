#include "frontend/dialects/lab.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "frontend/core/json_reader.h"
#include "frontend/dialects/common.h"
#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"
#include "frontend/openai/request_fields.h"

namespace baton {
namespace {

constexpr std::int64_t kDefaultMaxLength = 8192;
constexpr std::int64_t kDefaultMinLength = 10;
constexpr double kMaxTemperature = 100;

/// {"generated_text": the prompt and what follows it}.
class WholeReply : public ReplyWriter {
 public:
  explicit WholeReply(std::string_view prompt) : text_(prompt) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }

  std::string text(const ReplyPiece& piece) override {
    text_ += piece.text;
    return {};
  }

  std::string end(std::uint32_t, const Ending&) override { return {}; }

  std::string finish(const Usage&) override {
    return "{\"generated_text\":" + json_string(text_) + "}";
  }

  std::string fail(const Status& status) override { return error_json(status); }

 private:
  std::string text_;
};

/// One event a call with text, then one with the reason and the counts.
class StreamReply : public ReplyWriter {
 public:
  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }

  std::string text(const ReplyPiece& piece) override {
    std::string event;
    if (piece.text.empty()) return event;
    event.reserve(piece.text.size() + 32);
    event += "data: {\"text\":\"";
    append_json_escaped(event, piece.text);
    event += "\"}\n\n";
    return event;
  }

  std::string end(std::uint32_t, const Ending& ending) override {
    reason_ = ending.reason;
    return {};
  }

  std::string finish(const Usage& usage) override {
    return sse_event(std::string("{\"finish_reason\":\"") + to_string(reason_) +
                     "\",\"prompt_tokens\":" + std::to_string(usage.prompt_tokens) +
                     ",\"completion_tokens\":" + std::to_string(usage.completion_tokens) + "}") +
           std::string(kSseDone);
  }

  std::string fail(const Status& status) override {
    return sse_event(error_json(status)) + std::string(kSseDone);
  }

 private:
  FinishReason reason_ = FinishReason::none;
};

struct Lengths {
  std::optional<std::int64_t> max;
  std::optional<std::int64_t> min;
};

Lengths read_lengths(FieldReader& fields) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  Lengths lengths;
  lengths.max = fields.integer("max_length", 1, kHuge);
  lengths.min = fields.integer("min_length", 0, kHuge);
  if (lengths.max && lengths.min && *lengths.min > *lengths.max) {
    fields.fail("min_length", "is " + std::to_string(*lengths.min) + ", above 'max_length', " +
                                  std::to_string(*lengths.max));
  }
  return lengths;
}

/// Both lengths count the prompt too, as in the lab's own server.
Status settle_lengths(const Lengths& lengths, const RequestContext& context,
                      ParsedRequest& request) {
  if (Status status = check_prompt(request.prompts.front().size(), context); !status.ok())
    return status;
  const auto prompt = static_cast<std::int64_t>(request.prompts.front().size());
  const std::int64_t context_size = context.max_context;
  const std::int64_t asked = lengths.max.value_or(kDefaultMaxLength);
  const std::int64_t max_length = std::min(asked, context_size);
  if (max_length <= prompt) {
    return invalid("the prompt has " + std::to_string(prompt) + " tokens, so that max_length " +
                   std::to_string(max_length) + ", which counts the prompt, leaves no room");
  }
  if (asked > context_size) {
    request.headers.emplace_back("X-Baton-Max-Length", "clamped from " + std::to_string(asked) +
                                                           " to " + std::to_string(context_size));
  }
  const std::int64_t min_length = std::min(lengths.min.value_or(kDefaultMinLength), max_length);
  request.sampling.max_tokens = static_cast<std::uint32_t>(max_length - prompt);
  request.sampling.min_tokens =
      static_cast<std::uint32_t>(std::max<std::int64_t>(0, min_length - prompt));
  return {};
}

}  // namespace

ParseOutcome parse_generate(std::string_view body, const RequestContext& context,
                            const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());

  ParsedRequest request;
  FieldReader fields(json.value());
  const auto prompt = required_string(fields, "prompt");
  read_sampling(fields, context, model, kMaxTemperature, request);
  const Lengths lengths = read_lengths(fields);
  request.stream = fields.boolean("stream").value_or(false);
  if (const auto& error = fields.finish()) return field_error(*error);

  auto ids =
      model.tokenizer->encode_within(*prompt, model.tokenizer->add_bos(), tokenise_limit(context));
  Status status = far_too_long(context);
  if (ids) {
    request.prompts = {std::move(*ids)};
    status = settle_lengths(lengths, context, request);
  }
  if (!status.ok()) {
    return http_error(status, http_status(status.code()) == 400 ? "prompt" : "");
  }
  if (request.stream) {
    request.reply = std::make_unique<StreamReply>();
  } else {
    request.reply = std::make_unique<WholeReply>(*prompt);
  }
  return request;
}

const Dialect& lab_dialect() {
  class Lab : public Dialect {
   public:
    const char* name() const override { return "lab"; }
    std::vector<DialectRoute> routes() const override {
      return {{"POST", "/generate", &parse_generate}};
    }
  };
  static const Lab kDialect;
  return kDialect;
}

}  // namespace baton
