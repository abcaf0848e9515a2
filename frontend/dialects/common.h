// What the smaller dialects share: how a request begins, how its prompt is fitted to the context,
// and how FastAPI, on which most of their originals stand, reports errors. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/dialect.h"
#include "frontend/core/json_reader.h"
#include "frontend/http/http_error.h"
#include "frontend/openai/request_fields.h"

namespace baton {

/// A request with the model's own ends of a sequence, greedy, with the configured time-out.
ParsedRequest begin_request(const RequestContext& context, const ServedModel& model);

/// How much may follow a prompt.
struct NewTokens {
  std::int64_t max = 0;
  std::int64_t min = 0;
  std::int64_t keep_last = 0;  // of the prompt; 0: all of it
  bool specials = true;        // the prompt begins with what the model wants there
};

/// Tokenises one more prompt and checks that it and `tokens.max` fit the context together: too_long
/// otherwise. An empty prompt is an error. Sets max_tokens and min_tokens.
Status add_prompt(std::string_view text, const NewTokens& tokens, const RequestContext& context,
                  const ServedModel& model, ParsedRequest& request);
/// The error of add_prompt as a reply; `field` held the prompt.
HttpError prompt_error(const Status& status, const std::string& field);

/// `text` where it begins with what the model wants around a prompt, or as it is. Nothing: far too
/// long.
std::optional<std::vector<Token>> encode_prompt(std::string_view text, bool specials,
                                                const RequestContext& context,
                                                const ServedModel& model);

/// Sampling that goes with do_sample: without it the most probable token is taken.
void be_greedy(SamplingParams& sampling);
/// top_k with 0 or less as "off", bounded by the vocabulary.
void set_top_k(std::int64_t top_k, const ServedModel& model, SamplingParams& sampling);
/// A seed that the client gave.
void set_seed(std::int64_t seed, ParsedRequest& request);
/// Reads `seed`: an integer of 64 bits, with a sign or without.
void read_seed(FieldReader& fields, ParsedRequest& request);

/// The text of a field; its absence is an error, and the result then empty.
std::optional<std::string_view> required_string(FieldReader& fields, const std::string& name);
/// The object in a field; {} when it is absent, and when it is something else, which is an error.
nlohmann::json object_or_empty(FieldReader& fields, const std::string& name);

/// A field of the dialect that cannot be served: any value but null and `only` is an error that
/// says `why`.
void refuse_unless(FieldReader& fields, const std::string& name, const nlohmann::json& only,
                   const std::string& why);

/// Makes the request a beam search of `beams` sequences of which the best `told` become its
/// choices, once sampling and stop strings are read. Fails `name` where something else that was
/// asked for does not go with it.
void ask_for_beams(FieldReader& fields, const RequestContext& context, const std::string& name,
                   std::int64_t beams, std::int64_t told, ParsedRequest& request);

/// Boolean and numeric fields that came as strings ("True", "56"), as pydantic reads them, in
/// place. What is no such word stays as it is.
void coerce_words(nlohmann::json& object, const std::vector<std::string>& booleans,
                  const std::vector<std::string>& numbers);

/// {"detail": ...}: a list with the field's place for a body that is wrong (422), else a text.
HttpError fastapi_error(HttpError error);

/// Error of a body: unknown or wrong fields.
inline ParseOutcome refused(const FieldError& error) { return field_error(error); }

/// One token that was made, as these APIs list it. Its text is the new text that came with it.
struct ShownToken {
  Token id = 0;
  std::string text;
  std::optional<float> logprob;  // none: the workers do not tell
  bool special = false;
};
ShownToken shown_token(const ReplyPiece& piece, const Tokenizer& tokenizer);
/// "null", or the number.
std::string logprob_json(const std::optional<float>& logprob);
inline const char* bool_json(bool value) { return value ? "true" : "false"; }

}  // namespace baton
