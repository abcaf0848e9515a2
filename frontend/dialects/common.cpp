#include "frontend/dialects/common.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "frontend/http/sse.h"
#include "frontend/openai/logprobs_json.h"

namespace baton {
namespace {

using Json = nlohmann::json;

std::string lowered(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<bool> boolean_word(const std::string& text) {
  const std::string word = lowered(text);
  for (const char* yes : {"true", "1", "on", "t", "y", "yes"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "0", "off", "f", "n", "no"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::optional<Json> number_word(const std::string& text) {
  const char* end = text.data() + text.size();
  std::int64_t integer = 0;
  if (const auto read = std::from_chars(text.data(), end, integer);
      read.ec == std::errc() && read.ptr == end) {
    return Json(integer);
  }
  double number = 0;
  if (const auto read = std::from_chars(text.data(), end, number);
      read.ec == std::errc() && read.ptr == end) {
    return Json(number);
  }
  return std::nullopt;
}

/// "parameters.stop[2]" -> ,"parameters","stop",2
std::string place_of(std::string_view field) {
  std::string place;
  while (!field.empty()) {
    const std::size_t end = std::min(field.find_first_of(".["), field.size());
    std::string_view part = field.substr(0, end);
    const bool index = !part.empty() && part.back() == ']';
    if (index) part.remove_suffix(1);
    if (!part.empty()) place += "," + (index ? std::string(part) : json_string(part));
    field.remove_prefix(std::min(end + 1, field.size()));
  }
  return place;
}

}  // namespace

ParsedRequest begin_request(const RequestContext& context, const ServedModel& model) {
  ParsedRequest request;
  request.timeout = context.default_timeout;
  request.sampling.stop_ids = model.tokenizer->eos_ids();
  be_greedy(request.sampling);
  return request;
}

std::optional<std::vector<Token>> encode_prompt(std::string_view text, bool specials,
                                                const RequestContext& context,
                                                const ServedModel& model) {
  return model.tokenizer->encode_within(text, specials && model.tokenizer->add_bos(),
                                        tokenise_limit(context));
}

Status add_prompt(std::string_view text, const NewTokens& tokens, const RequestContext& context,
                  const ServedModel& model, ParsedRequest& request) {
  if (text.empty() && context.max_context != 0) return invalid("the prompt is empty");
  auto ids = encode_prompt(text, tokens.specials, context, model);
  if (!ids) return far_too_long(context);
  const auto last = static_cast<std::size_t>(tokens.keep_last);
  if (last != 0 && ids->size() > last) {
    ids->erase(ids->begin(), ids->end() - static_cast<std::ptrdiff_t>(last));
  }
  if (Status status = check_prompt(ids->size(), context); !status.ok()) return status;
  const auto prompt = static_cast<std::int64_t>(ids->size());
  if (prompt + tokens.max > context.max_context) {
    return Status(
        ErrorCode::too_long,
        "the prompt has " + std::to_string(prompt) + " tokens, and " + std::to_string(tokens.max) +
            " new ones are asked for: " + std::to_string(prompt + tokens.max) +
            " together; this model's context holds " + std::to_string(context.max_context));
  }
  request.prompts.push_back(std::move(*ids));
  request.sampling.max_tokens = static_cast<std::uint32_t>(tokens.max);
  request.sampling.min_tokens = static_cast<std::uint32_t>(tokens.min);
  return {};
}

HttpError prompt_error(const Status& status, const std::string& field) {
  return http_error(status, http_status(status.code()) == 400 ? field : "");
}

void be_greedy(SamplingParams& sampling) {
  sampling.temperature = 0;
  sampling.top_p = 1;
  sampling.top_k = 0;
  sampling.typical_p = 1;
}

void set_top_k(std::int64_t top_k, const ServedModel& model, SamplingParams& sampling) {
  const auto vocab = static_cast<std::int64_t>(model.tokenizer->vocab_size());
  sampling.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(top_k, 0, vocab));
}

void set_seed(std::int64_t seed, ParsedRequest& request) {
  request.sampling.seed = static_cast<std::uint64_t>(seed);
  request.seed_given = true;
}

void read_seed(FieldReader& fields, ParsedRequest& request) {
  const Json* given = fields.take("seed");
  if (given != nullptr && given->is_number_unsigned()) {
    request.sampling.seed = given->get<std::uint64_t>();
    request.seed_given = true;
    return;
  }
  const auto seed = fields.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max());
  if (seed) set_seed(*seed, request);
}

std::optional<std::string_view> required_string(FieldReader& fields, const std::string& name) {
  const auto text = fields.string(name);
  if (fields.ok() && !text) fields.fail(name, "is missing");
  return text;
}

nlohmann::json object_or_empty(FieldReader& fields, const std::string& name) {
  const nlohmann::json* given = fields.take(name);
  if (given != nullptr && given->is_object()) return *given;
  if (given != nullptr) {
    fields.fail(name, std::string("must be an object, not ") + kind_of(*given));
  }
  return nlohmann::json::object();
}

void refuse_unless(FieldReader& fields, const std::string& name, const Json& only,
                   const std::string& why) {
  const Json* value = fields.take(name);
  if (value == nullptr || *value == only) return;
  fields.fail(name, "is not supported: " + why + "; only " + only.dump() + " is accepted");
}

void ask_for_beams(FieldReader& fields, const RequestContext& context, const std::string& name,
                   std::int64_t beams, std::int64_t told, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  if (sampling.temperature != 0) fields.fail(name, "asks for a beam search, which draws no tokens");
  if (!request.stop.empty()) fields.fail("stop", "is not supported by beam search");
  if (told > context.max_choices) {
    fields.fail(name, "asks for more than this server's " + std::to_string(context.max_choices) +
                          " streams");
  }
  sampling.num_beams = static_cast<std::uint32_t>(beams);
  sampling.num_return_sequences = request.choices = static_cast<std::uint32_t>(told);
}

void coerce_words(Json& object, const std::vector<std::string>& booleans,
                  const std::vector<std::string>& numbers) {
  for (const std::string& name : booleans) {
    const auto at = object.find(name);
    if (at == object.end()) continue;
    if (at->is_string()) {
      if (const auto value = boolean_word(at->get_ref<const std::string&>())) *at = *value;
    } else if (at->is_number_integer() && (*at == 0 || *at == 1)) {
      *at = *at == 1;
    }
  }
  for (const std::string& name : numbers) {
    const auto at = object.find(name);
    if (at == object.end() || !at->is_string()) continue;
    if (auto value = number_word(at->get_ref<const std::string&>())) *at = std::move(*value);
  }
}

HttpError fastapi_error(HttpError error) {
  const bool body =
      error.status == 400 && error.code != "bad_request" && error.code != "bad_request_id";
  if (!body) {
    error.body = "{\"detail\":" + json_string(error.message) + "}";
    return error;
  }
  error.status = 422;
  error.body = "{\"detail\":[{\"loc\":[\"body\"" + place_of(error.param) +
               "],\"msg\":" + json_string(error.message) + ",\"type\":\"value_error\"}]}";
  return error;
}

ShownToken shown_token(const ReplyPiece& piece, const Tokenizer& tokenizer) {
  ShownToken token{.id = piece.token, .text = std::string(piece.text), .logprob = {}};
  token.special = piece.token >= 0 && tokenizer.is_special(piece.token);
  if (piece.logprobs != nullptr) token.logprob = piece.logprobs->logprob;
  return token;
}

std::string logprob_json(const std::optional<float>& logprob) {
  return logprob ? json_number(*logprob) : "null";
}

}  // namespace baton
