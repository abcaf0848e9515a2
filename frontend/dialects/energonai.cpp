#include "frontend/dialects/energonai.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"

namespace baton {
namespace energonai {
namespace {

constexpr std::int64_t kMostTokens = 256;

/// {"text": the prompt and what follows it}
class Reply : public ReplyWriter {
 public:
  explicit Reply(std::string_view prompt) : text_(prompt) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    text_ += piece.text;
    return {};
  }
  std::string end(std::uint32_t, const Ending&) override { return {}; }
  std::string finish(const Usage&) override { return "{\"text\":" + json_string(text_) + "}"; }
  std::string fail(const Status& status) override { return error_json(status); }

 private:
  std::string text_;
};

/// The form of the OPT and GPT servers: {"max_tokens", "top_k", "top_p", "temperature"}, drawn.
std::int64_t read_drawn(FieldReader& fields, const ServedModel& model, SamplingParams& sampling) {
  const auto max = fields.integer("max_tokens", 1, kMostTokens);
  if (fields.ok() && !max) fields.fail("max_tokens", "is missing, and so is 'max_new_tokens'");
  const double below_one = std::nextafter(1.0, 0.0);  // its bounds leave 1 itself out
  const auto top_k = fields.integer("top_k", 1, kMaxCount);
  const auto top_p = fields.number("top_p", 0, below_one, true);
  const auto temperature = fields.number("temperature", 0, below_one, true);
  sampling.temperature = std::max(static_cast<float>(temperature.value_or(1)), 1e-5F);
  sampling.top_p = std::max(static_cast<float>(top_p.value_or(1)), 1e-6F);
  set_top_k(top_k.value_or(0), model, sampling);
  return max.value_or(1);
}

/// The form of the Bloom server: {"max_new_tokens", "greedy"}. It takes the most probable token
/// whatever "greedy" says.
std::int64_t read_greedy(FieldReader& fields) {
  fields.boolean("greedy");
  return fields.integer("max_new_tokens", 1, kMostTokens).value_or(1);
}

ParseOutcome parse(std::string_view body, const RequestContext& context, const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  ParsedRequest request = begin_request(context, model);
  const auto prompt = fields.string("prompt");
  if (fields.ok() && (!prompt || prompt->empty())) {
    fields.fail("prompt", prompt ? "must not be empty" : "is missing");
  }
  const bool bloom = json.value().contains("max_new_tokens");
  const std::int64_t max =
      bloom ? read_greedy(fields) : read_drawn(fields, model, request.sampling);
  if (const auto& error = fields.finish()) return refused(*error);
  const Status status = add_prompt(*prompt, {.max = max}, context, model, request);
  if (!status.ok()) return prompt_error(status, "prompt");
  request.reply = std::make_unique<Reply>(*prompt);
  return request;
}

class EnergonAi : public Dialect {
 public:
  const char* name() const override { return "energonai"; }
  std::vector<DialectRoute> routes() const override { return {{"POST", "/generation", &parse}}; }
  HttpError shape(HttpError error) const override {
    if (error.status == 429) error.status = 406;  // its answer to a full queue
    return fastapi_error(std::move(error));
  }
};

}  // namespace
}  // namespace energonai

const Dialect& energonai_dialect() {
  static const energonai::EnergonAi kDialect;
  return kDialect;
}

}  // namespace baton
