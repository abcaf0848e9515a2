// POST /tokenize and POST /detokenize, in vLLM's shapes. Pure.
#pragma once

#include <string_view>

#include "frontend/core/generation.h"
#include "frontend/core/served_model.h"

namespace baton {

/// {"prompt", "add_special_tokens"} or {"messages", ...as in a chat}, and "return_token_strs":
/// {"count", "max_model_len", "tokens", "token_strs"}. {"inputs"}, as text-generation-inference has
/// it: [{"id", "text", "start", "stop"}]. A prompt of more than twice the context is refused, as it
/// is everywhere.
ParseOutcome parse_tokenize(std::string_view body, const RequestContext& context,
                            const ServedModel& model);

/// {"tokens"}: {"prompt"}, special tokens included.
ParseOutcome parse_detokenize(std::string_view body, const RequestContext& context,
                              const ServedModel& model);

}  // namespace baton
