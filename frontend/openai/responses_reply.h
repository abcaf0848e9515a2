// Replies of /v1/responses as bytes: a list of items (reasoning, messages, calls), whole or as its
// events. Pure.
#pragma once

#include <memory>
#include <string>

#include "frontend/core/generation.h"
#include "frontend/openai/translation.h"

namespace baton {

/// `echo`: the members of the response that repeat the request, ",..." without braces. `packed`:
/// reasoning items have "encrypted_content" (responses_input.h).
std::unique_ptr<ReplyWriter> responses_reply(ReplyGrounds grounds, std::string echo, bool packed);

}  // namespace baton
