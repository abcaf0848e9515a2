// Fields that the HTTP dialects share: sampling, stop conditions, limits, and the many fields of
// the public APIs that are accepted because they ask for nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/core/json_reader.h"
#include "frontend/core/served_model.h"
#include "frontend/http/http_error.h"

namespace baton {

inline constexpr std::size_t kMaxSaltBytes = 256;
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopBytes = 256;
inline constexpr std::size_t kMaxStopIds = 64;
inline constexpr double kMaxPenalty = 2;
inline constexpr double kMaxRepetitionPenalty = 100;
inline constexpr double kMaxBias = 100;
inline constexpr std::size_t kMaxBiasedTokens = 1024;
inline constexpr std::size_t kMaxAllowedTokens = 16'384;
inline constexpr std::size_t kMaxBadWords = 128;
inline constexpr std::size_t kMaxBadWordBytes = 256;
/// Largest token count that a request may name; far above any context.
inline constexpr std::int64_t kMaxCount = INT32_MAX;

/// What is drawn with where a request does not say: before its fields are read.
void take_defaults(const SamplingDefaults& defaults, SamplingParams& sampling);

/// temperature [0, max_temperature], top_p (0, 1], top_k (0 or -1: off), seed (any 64-bit integer),
/// stop (a string or a list of up to 16), timeout_s. Sets the model's end-of-sequence ids.
void read_sampling(FieldReader& fields, const RequestContext& context, const ServedModel& model,
                   double max_temperature, ParsedRequest& request);

/// timeout_s: (0, context.max_timeout], or the default.
void read_timeout(FieldReader& fields, const RequestContext& context, ParsedRequest& request);

/// priority, cache_salt.
void read_standing(FieldReader& fields, ParsedRequest& request);

/// Stop strings under any name: one, or a list of up to 16.
void read_stop(FieldReader& fields, const std::string& field, ParsedRequest& request);

/// vLLM's further parameters: stop_token_ids, ignore_eos, include_stop_str_in_output. Whether the
/// end of a sequence is to be ignored.
bool read_stop_extras(FieldReader& fields, const ServedModel& model, ParsedRequest& request);

/// What comes beside temperature, top_p and top_k: min_p, typical_p, repetition_penalty,
/// presence_penalty, frequency_penalty, logit_bias, allowed_token_ids, bad_words. A bad word stands
/// for two sequences of tokens: as it is written at the start of a text, and after other words.
void read_further_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request);

/// allowed_token_ids alone: 1 to 16384 ids.
void read_allowed_tokens(FieldReader& fields, const ServedModel& model, SamplingParams& sampling);

/// Token ids out of an array; fails `name` where one is not an id of the vocabulary.
std::vector<Token> read_token_ids(FieldReader& fields, const nlohmann::json& ids,
                                  const std::string& name, const ServedModel& model);

/// Which API a field belongs to.
enum class OpenAiRoute : std::uint8_t { completion = 1, chat = 2 };

/// Takes every known field that is not supported. One that asks for nothing (0 penalty, an empty
/// list, null, user, metadata, ...) is ignored; any other value is an error that names it.
void ignore_neutral_fields(FieldReader& fields, OpenAiRoute route);

struct NeutralFact {
  std::string name;
  std::string accepted;  // besides null, as the error tells it
};
std::vector<NeutralFact> neutral_fields(OpenAiRoute route);

/// Checks the prompt against the context; the message holds the numbers. context.max_context of 0
/// means that no worker has said yet how much it can hold: unavailable.
Status check_prompt(std::size_t prompt_tokens, const RequestContext& context);

/// How far a prompt is tokenised: twice the context, so that a prompt a little too long is told its
/// exact length, and one far too long costs no more.
std::size_t tokenise_limit(const RequestContext& context);
/// What to say beyond that limit.
Status far_too_long(const RequestContext& context);

/// 404: the request names a model that is not served.
HttpError unknown_model(std::string_view name, const ServedModel& model);

inline constexpr const char* kIgnoredFieldsHeader = "X-Ignored-Fields";
/// "clamped from 9000 to 3072": the context leaves less than the client asked for.
inline constexpr const char* kMaxTokensHeader = "X-Baton-Max-Tokens";

/// A field error as HTTP 400.
HttpError field_error(const FieldError& error);

}  // namespace baton
