#include "frontend/openai/choice_fields.h"

#include <algorithm>

namespace baton {
namespace {

bool asks_for_beams(const FieldReader& fields) {
  const auto& object = fields.object();
  const auto it = object.find("use_beam_search");
  return it != object.end() && *it == true;
}

void read_counts(FieldReader& fields, OpenAiRoute route, const ParsedRequest& request,
                 AskedChoices& asked) {
  const bool beams = asks_for_beams(fields);  // `best_of` is their number then
  const auto n = fields.integer("n", 1, kMaxChoices).value_or(1);
  const auto best_of = fields.integer("best_of", 1, kMaxChoices).value_or(n);
  if (best_of < n) {
    fields.fail("best_of",
                "is " + std::to_string(best_of) + ", below 'n', which is " + std::to_string(n));
  } else if (best_of > n && route == OpenAiRoute::chat && !beams) {
    fields.fail("best_of", "is not supported by chats beyond 'n'");
  } else if (best_of > n && request.stream && !beams) {
    fields.fail("best_of", "above 'n' cannot be streamed: the best are known at the end");
  }
  asked.told = static_cast<std::uint32_t>(n);
  asked.made = static_cast<std::uint32_t>(best_of);
}

/// Completions: a number. Chats: a boolean, and the number in top_logprobs.
void read_logprobs(FieldReader& fields, OpenAiRoute route, AskedChoices& asked) {
  if (route == OpenAiRoute::completion) {
    const nlohmann::json* given = fields.take("logprobs");
    if (given != nullptr && *given == false) return;
    const auto count = fields.integer("logprobs", 0, kMaxTopLogprobs);
    if (count) asked.logprobs = static_cast<std::int32_t>(*count);
    return;
  }
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs).value_or(0);
  if (wanted) {
    asked.logprobs = static_cast<std::int32_t>(top);
  } else if (top > 0) {
    fields.fail("top_logprobs", "is only allowed when 'logprobs' is true");
  }
}

}  // namespace

AskedChoices read_choices(FieldReader& fields, OpenAiRoute route, ParsedRequest& request) {
  AskedChoices asked;
  SamplingParams& sampling = request.sampling;
  read_counts(fields, route, request, asked);
  read_logprobs(fields, route, asked);
  if (const auto count = fields.integer("prompt_logprobs", 0, kMaxTopLogprobs)) {
    asked.prompt_logprobs = static_cast<std::int32_t>(*count);
    if (request.stream) fields.fail("prompt_logprobs", "cannot be streamed");
  }
  read_beams(fields, asked, request);
  request.choices = asked.made;
  sampling.logprobs = asked.logprobs;
  if (asked.made > asked.told) sampling.logprobs = std::max(sampling.logprobs, 0);
  if (route == OpenAiRoute::completion) asked.echo = fields.boolean("echo").value_or(false);
  sampling.prompt_logprobs =
      std::max(asked.prompt_logprobs, asked.echo ? asked.logprobs : std::int32_t{-1});
  return asked;
}

}  // namespace baton
