// POST /v1/completions/render and /v1/chat/completions/render, in vLLM's shapes: which tokens a
// request is, without running it. Routers ask, to look them up among what caches hold. Pure.
#pragma once

#include <string_view>

#include "frontend/core/generation.h"
#include "frontend/core/served_model.h"

namespace baton {

/// Takes what POST /v1/completions takes and refuses what that refuses. A list, of an object for
/// each prompt: {"request_id", "model", "token_ids", "features": null}.
ParseOutcome parse_completion_render(std::string_view body, const RequestContext& context,
                                     const ServedModel& model);

/// The same of a chat: one such object.
ParseOutcome parse_chat_render(std::string_view body, const RequestContext& context,
                               const ServedModel& model);

}  // namespace baton
