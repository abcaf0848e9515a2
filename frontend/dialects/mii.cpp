#include "frontend/dialects/mii.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frontend/core/percent_decoded.h"
#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"
#include "frontend/openai/choice_fields.h"

namespace baton {
namespace mii {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kDefaultMaxLength = 1024;
constexpr double kDefaultTopP = 0.9;

/// A list with one object a prompt.
class Reply : public ReplyWriter {
 public:
  struct Sequence {
    std::string text;  // begins with the prompt where it is to be repeated
    std::size_t prompt_tokens = 0;
    std::uint32_t tokens = 0;
    FinishReason reason = FinishReason::none;
  };
  explicit Reply(std::vector<Sequence> sequences) : sequences_(std::move(sequences)) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    sequences_[piece.choice].text += piece.text;
    sequences_[piece.choice].tokens += piece.token >= 0 ? 1 : 0;
    return {};
  }
  std::string end(std::uint32_t choice, const Ending& ending) override {
    sequences_[choice].reason = ending.reason;
    return {};
  }
  std::string finish(const Usage&) override {
    std::string list;
    for (const Sequence& sequence : sequences_) {
      list += (list.empty() ? "" : ",") + std::string("{\"generated_text\":") +
              json_string(sequence.text) +
              ",\"prompt_length\":" + std::to_string(sequence.prompt_tokens) +
              ",\"generated_length\":" + std::to_string(sequence.tokens) + ",\"finish_reason\":\"" +
              to_string(sequence.reason) + "\"}";
    }
    return "[" + list + "]\n";
  }
  std::string fail(const Status& status) override { return error_json(status); }

 private:
  std::vector<Sequence> sequences_;
};

std::vector<std::string_view> read_prompts(FieldReader& fields) {
  std::vector<std::string_view> prompts;
  const Json* given = fields.take("prompts");
  if (given == nullptr) {
    fields.fail("prompts", "is missing");
    return prompts;
  }
  const std::size_t count = given->is_array() ? given->size() : 1;
  if (count == 0 || count > kMaxPrompts) {
    fields.fail("prompts", "must hold 1 to " + std::to_string(kMaxPrompts) + " texts");
    return prompts;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Json& item = given->is_array() ? (*given)[i] : *given;
    if (!item.is_string()) {
      fields.fail("prompts[" + std::to_string(i) + "]",
                  std::string("must be a string, not ") + kind_of(item));
      return prompts;
    }
    prompts.push_back(item.get_ref<const std::string&>());
  }
  return prompts;
}

void read_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const bool sample = fields.boolean("do_sample").value_or(true);
  const double top_p = fields.number("top_p", 0, 1, true).value_or(kDefaultTopP);
  const std::int64_t top_k = fields.integer("top_k", 1, kMaxCount).value_or(0);
  const double temperature = fields.number("temperature", 0, 100, true).value_or(1);
  if (sample) {
    sampling.temperature = std::max(static_cast<float>(temperature), 1e-5F);
    sampling.top_p = std::max(static_cast<float>(top_p), 1e-6F);
    set_top_k(top_k, model, sampling);
  }
  read_stop(fields, "stop", request);
  if (fields.boolean("ignore_eos").value_or(false)) sampling.stop_ids.clear();
  refuse_unless(fields, "stream", false, "the gateway sends whole replies");
}

struct Lengths {
  std::int64_t max_length = kDefaultMaxLength;  // prompt and reply together
  std::int64_t max_new = 0;                     // 0: what max_length leaves
  std::int64_t min_new = 0;
};

Lengths read_lengths(FieldReader& fields) {
  Lengths lengths;
  lengths.max_length = fields.integer("max_length", 2, kMaxCount).value_or(kDefaultMaxLength);
  lengths.max_new = fields.integer("max_new_tokens", 1, kMaxCount).value_or(0);
  lengths.min_new = fields.integer("min_new_tokens", 0, kMaxCount).value_or(0);
  if (lengths.max_new != 0 && lengths.min_new > lengths.max_new) {
    fields.fail("min_new_tokens", "is above 'max_new_tokens'");
  }
  return lengths;
}

/// Each prompt may be followed by what its own length leaves of max_length.
Status settle(const std::vector<std::string_view>& prompts, const Lengths& lengths,
              const RequestContext& context, const ServedModel& model, ParsedRequest& request) {
  const std::int64_t bound = std::min<std::int64_t>(lengths.max_length, context.max_context);
  RequestContext bounded = context;
  bounded.max_context = static_cast<std::uint32_t>(bound);
  for (const std::string_view prompt : prompts) {
    // As many new tokens as the client insists on must fit.
    const std::int64_t least = std::max<std::int64_t>(1, lengths.min_new);
    Status status = add_prompt(prompt, {.max = least}, bounded, model, request);
    if (!status.ok()) return status;
  }
  request.max_context = static_cast<std::uint32_t>(bound);
  request.sampling.max_tokens =
      static_cast<std::uint32_t>(lengths.max_new != 0 ? lengths.max_new : bound);
  request.sampling.min_tokens = static_cast<std::uint32_t>(lengths.min_new);
  return {};
}

ParseOutcome parse(std::string_view body, const RequestContext& context, const ServedModel& model) {
  const std::string name =
      percent_decoded(std::string_view(context.path).substr(context.path.rfind('/') + 1));
  if (name != model.name) {
    return http_error(404,
                      "there is no deployment '" + name.substr(0, 200) +
                          "' here; this server has '" + model.name + "'",
                      "not_found");
  }
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  ParsedRequest request = begin_request(context, model);
  const auto prompts = read_prompts(fields);
  const Lengths lengths = read_lengths(fields);
  read_sampling(fields, model, request);
  const bool full = fields.boolean("return_full_text").value_or(false);
  if (const auto& error = fields.finish()) return refused(*error);
  if (prompts.size() > context.max_choices) {
    return http_error(invalid("more prompts than this server's streams"), "prompts");
  }
  const Status status = settle(prompts, lengths, context, model, request);
  if (!status.ok()) return prompt_error(status, "prompts");
  std::vector<Reply::Sequence> sequences;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    sequences.push_back({.text = full ? std::string(prompts[i]) : std::string(),
                         .prompt_tokens = request.prompts[i].size()});
  }
  request.reply = std::make_unique<Reply>(std::move(sequences));
  return request;
}

class Mii : public Dialect {
 public:
  const char* name() const override { return "mii"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/mii/:name", &parse, ModelNamed::in_path}};
  }
  HttpError shape(HttpError error) const override {
    error.body = "{\"message\":" + json_string(error.message) + "}";
    return error;
  }
};

}  // namespace
}  // namespace mii

const Dialect& mii_dialect() {
  static const mii::Mii kDialect;
  return kDialect;
}

}  // namespace baton
