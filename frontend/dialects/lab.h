// The lab's dialect: POST /generate {"prompt", "temperature", "max_length", "min_length"} ->
// {"generated_text": the prompt and what follows it}.
#pragma once

#include <string_view>

#include "frontend/core/dialect.h"

namespace baton {

/// max_length (8192) and min_length (10) count all tokens, the prompt's included. A max_length
/// beyond the context is clamped, and the reply says so in X-Baton-Max-Length; a prompt that leaves
/// no room is a 400. Further fields: seed, top_p, top_k, stop, timeout_s, and stream (events `data:
/// {"text": ...}`). An unknown field is a 400.
ParseOutcome parse_generate(std::string_view body, const RequestContext& context,
                            const ServedModel& model);

const Dialect& lab_dialect();

}  // namespace baton
