// The fields that say how many choices a reply has, and what it tells besides their text.
#pragma once

#include <cstdint>

#include "frontend/core/generation.h"
#include "frontend/core/json_reader.h"
#include "frontend/openai/request_fields.h"

namespace baton {

inline constexpr std::int64_t kMaxChoices = 128;     // of one prompt
inline constexpr std::size_t kMaxPrompts = 256;      // of one request
inline constexpr std::int64_t kMaxTopLogprobs = 20;  // most probable tokens told beside each

struct AskedChoices {
  std::uint32_t told = 1;             // n
  std::uint32_t made = 1;             // best_of
  std::int32_t logprobs = -1;         // -1: not told; else so many of the most probable tokens
  std::int32_t prompt_logprobs = -1;  // likewise
  bool echo = false;
};

/// use_beam_search, length_penalty, early_stopping, once the other sampling fields and `asked` are
/// read: makes the choices that were asked for those of a beam search, or says what it does not go
/// with.
void read_beams(FieldReader& fields, AskedChoices& asked, ParsedRequest& request);

/// n, best_of, echo, logprobs, top_logprobs, prompt_logprobs and the fields of beam search; sets
/// what they ask of the sampling. After `stream`.
AskedChoices read_choices(FieldReader& fields, OpenAiRoute route, ParsedRequest& request);

}  // namespace baton
