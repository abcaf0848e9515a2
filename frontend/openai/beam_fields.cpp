// The fields of beam search, by vLLM's names: `best_of` is its width, `n` how many sequences are
// told.
#include <string>

#include "frontend/openai/choice_fields.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr const char* kNothingDrawn =
    "must ask for nothing with beam search, which draws no tokens";

void read_penalty(FieldReader& fields, SamplingParams& sampling) {
  const double bound = double{SamplingParams::kMaxLengthPenalty};
  if (const auto penalty = fields.number("length_penalty", -bound, bound)) {
    sampling.length_penalty = static_cast<float>(*penalty);
  }
  const Json* early = fields.take("early_stopping");
  if (early == nullptr || *early == false) return;
  if (*early == true) {
    sampling.early_stopping = EarlyStopping::at_once;
  } else if (*early == "never") {
    sampling.early_stopping = EarlyStopping::never;
  } else {
    fields.fail("early_stopping", "must be true, false or \"never\"");
  }
}

/// A search draws nothing: what the model's publisher says of draws does not concern it.
void drop_defaults(const FieldReader& fields, SamplingParams& sampling) {
  const SamplingParams neutral;
  const auto given = [&](const char* name) { return fields.object().contains(name); };
  if (!given("temperature")) sampling.temperature = neutral.temperature;
  if (!given("top_p")) sampling.top_p = neutral.top_p;
  if (!given("top_k")) sampling.top_k = neutral.top_k;
  if (!given("min_p")) sampling.min_p = neutral.min_p;
}

/// What cannot be had together with beams.
void check_others(FieldReader& fields, const ParsedRequest& request, const AskedChoices& asked) {
  const SamplingParams& sampling = request.sampling;
  if (sampling.temperature != 0 && sampling.temperature != 1) {
    fields.fail("temperature", "must be 0 or 1 with beam search, which draws no tokens");
  }
  if (sampling.top_p < 1) fields.fail("top_p", kNothingDrawn);
  if (sampling.top_k > 0) fields.fail("top_k", kNothingDrawn);
  if (sampling.min_p > 0) fields.fail("min_p", kNothingDrawn);
  if (sampling.typical_p < 1) fields.fail("typical_p", kNothingDrawn);
  if (!request.stop.empty()) {
    fields.fail("stop", "is not supported by beam search; name tokens in 'stop_token_ids'");
  }
  if (!request.grammar_field.empty()) {
    fields.fail(request.grammar_field, "is not supported by beam search");
  }
  if (asked.logprobs >= 0) fields.fail("logprobs", "are not supported by beam search");
  if (asked.prompt_logprobs >= 0)
    fields.fail("prompt_logprobs", "are not supported by beam search");
}

}  // namespace

void read_beams(FieldReader& fields, AskedChoices& asked, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const bool beams = fields.boolean("use_beam_search").value_or(false);
  read_penalty(fields, sampling);
  if (!beams) {
    if (sampling.length_penalty != 1) {
      fields.fail("length_penalty", "is only allowed when 'use_beam_search' is true");
    }
    if (sampling.early_stopping != EarlyStopping::heuristic) {
      fields.fail("early_stopping", "is only allowed when 'use_beam_search' is true");
    }
    return;
  }
  drop_defaults(fields, sampling);
  check_others(fields, request, asked);
  if (asked.made > SamplingParams::kMaxBeams) {
    fields.fail(
        asked.told > SamplingParams::kMaxBeams ? "n" : "best_of",
        "may be at most " + std::to_string(SamplingParams::kMaxBeams) + " with beam search");
  }
  // One beam is the most probable token each time: no search.
  sampling.temperature = 0;
  sampling.num_beams = asked.made;
  sampling.num_return_sequences = asked.told;
  if (!sampling.beams()) sampling.length_penalty = 1;
  asked.made = asked.told;  // the others are no choices: the search drops them
}

}  // namespace baton
