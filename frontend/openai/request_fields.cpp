#include "frontend/openai/request_fields.h"

#include <algorithm>
#include <limits>

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr double kGreedyBelow = 1e-5;  // a division by less overflows the logits
constexpr double kMinTopP = 1e-6;

}  // namespace

void read_timeout(FieldReader& fields, const RequestContext& context, ParsedRequest& request) {
  const double bound = static_cast<double>(context.max_timeout) / kSecond;
  request.timeout = context.default_timeout;
  if (const auto seconds = fields.number("timeout_s", 0, bound, true)) {
    request.timeout = std::max<TimeNs>(1, static_cast<TimeNs>(*seconds * kSecond));
  }
}

void read_standing(FieldReader& fields, ParsedRequest& request) {
  const auto priority = fields.integer("priority", -kMaxPriority, kMaxPriority);
  request.priority = static_cast<std::int32_t>(priority.value_or(0));
  request.cache_salt = fields.string("cache_salt").value_or("");
  if (request.cache_salt.size() > kMaxSaltBytes) {
    fields.fail("cache_salt", "may have at most " + std::to_string(kMaxSaltBytes) + " bytes");
  }
}

void read_stop(FieldReader& fields, const std::string& field, ParsedRequest& request) {
  const Json* value = fields.take(field);
  if (value == nullptr) return;
  if (!value->is_string() && !value->is_array()) {
    fields.fail(field,
                std::string("must be a string or an array of strings, not ") + kind_of(*value));
    return;
  }
  if (*value == "") return;  // as some clients write that there is none
  const std::size_t count = value->is_string() ? 1 : value->size();
  if (count > kMaxStopStrings) {
    fields.fail(field, "may hold at most " + std::to_string(kMaxStopStrings) + " strings, not " +
                           std::to_string(count));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Json& item = value->is_string() ? *value : (*value)[i];
    const std::string name = value->is_string() ? field : field + "[" + std::to_string(i) + "]";
    if (!item.is_string()) {
      fields.fail(name, std::string("must be a string, not ") + kind_of(item));
      return;
    }
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) {
      fields.fail(name, "must not be empty");
    } else if (text.size() > kMaxStopBytes) {
      fields.fail(name, "may be at most " + std::to_string(kMaxStopBytes) + " bytes long, not " +
                            std::to_string(text.size()));
    } else {
      request.stop.push_back(text);
    }
  }
}

void take_defaults(const SamplingDefaults& defaults, SamplingParams& sampling) {
  if (const auto given = defaults.temperature) {
    sampling.temperature = *given < kGreedyBelow ? 0.0F : *given;
  }
  if (defaults.top_p) sampling.top_p = std::max(*defaults.top_p, static_cast<float>(kMinTopP));
  if (defaults.top_k) sampling.top_k = *defaults.top_k;
  if (defaults.min_p) sampling.min_p = *defaults.min_p;
  if (defaults.repetition_penalty) sampling.repetition_penalty = *defaults.repetition_penalty;
}

void read_sampling(FieldReader& fields, const RequestContext& context, const ServedModel& model,
                   double max_temperature, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  if (const auto value = fields.number("temperature", 0, max_temperature)) {
    sampling.temperature = *value < kGreedyBelow ? 0.0F : static_cast<float>(*value);
  }
  if (const auto value = fields.number("top_p", 0, 1, true)) {
    sampling.top_p = static_cast<float>(std::max(*value, kMinTopP));
  }
  if (const auto value = fields.integer("top_k", -1, kMaxCount)) {
    const auto vocab = static_cast<std::int64_t>(model.tokenizer->vocab_size());
    sampling.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(*value, 0, vocab));
  }
  if (const auto value = fields.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                        std::numeric_limits<std::int64_t>::max())) {
    sampling.seed = static_cast<std::uint64_t>(*value);
    request.seed_given = true;
  }
  sampling.stop_ids = model.tokenizer->eos_ids();
  read_stop(fields, "stop", request);
  read_timeout(fields, context, request);
}

bool read_stop_extras(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  const bool ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (ignore_eos) request.sampling.stop_ids.clear();
  const bool not_trimmed = fields.boolean("no_stop_trim").value_or(false);  // SGLang's name
  request.include_stop_in_output =
      fields.boolean("include_stop_str_in_output").value_or(not_trimmed);
  const Json* ids = fields.take("stop_token_ids");
  if (ids == nullptr) return ignore_eos;
  if (!ids->is_array() || ids->size() > kMaxStopIds) {
    fields.fail("stop_token_ids",
                "must be an array of at most " + std::to_string(kMaxStopIds) + " token ids");
    return ignore_eos;
  }
  request.told_stop_ids = read_token_ids(fields, *ids, "stop_token_ids", model);
  auto& all = request.sampling.stop_ids;
  std::erase_if(request.told_stop_ids,
                [&](Token id) { return std::find(all.begin(), all.end(), id) != all.end(); });
  all.insert(all.end(), request.told_stop_ids.begin(), request.told_stop_ids.end());
  return ignore_eos;
}

std::vector<Token> read_token_ids(FieldReader& fields, const Json& ids, const std::string& name,
                                  const ServedModel& model) {
  const std::int64_t vocab = model.tokenizer->vocab_size();
  std::vector<Token> tokens;
  tokens.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Json& id = ids[i];
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab) {
      fields.fail(name + "[" + std::to_string(i) + "]",
                  "must be a token id between 0 and " + std::to_string(vocab - 1));
      break;
    }
    tokens.push_back(id.get<Token>());
  }
  return tokens;
}

Status check_prompt(std::size_t prompt_tokens, const RequestContext& context) {
  if (context.max_context == 0) {
    return Status(ErrorCode::unavailable, "no worker is ready yet; try again in a moment");
  }
  if (prompt_tokens == 0) return invalid("the prompt is empty");
  if (prompt_tokens >= context.max_context) {
    return Status(ErrorCode::too_long, "the prompt has " + std::to_string(prompt_tokens) +
                                           " tokens; this model's context holds " +
                                           std::to_string(context.max_context) +
                                           " tokens, prompt and reply together");
  }
  return {};
}

std::size_t tokenise_limit(const RequestContext& context) {
  return 2 * std::size_t{context.max_context};
}

Status far_too_long(const RequestContext& context) {
  if (context.max_context == 0) return check_prompt(0, context);
  return Status(ErrorCode::too_long,
                "the prompt has more than " + std::to_string(tokenise_limit(context)) +
                    " tokens; this model's context holds " + std::to_string(context.max_context) +
                    " tokens, prompt and reply together");
}

HttpError unknown_model(std::string_view name, const ServedModel& model) {
  return no_such_model(name, {model});
}

HttpError field_error(const FieldError& error) {
  return http_error(invalid(error.message), error.field);
}

}  // namespace baton
