// Replies of Anthropic's API as bytes: a message of content blocks, whole or as its events. Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/openai/translation.h"

namespace baton {

/// What the request says about its reply.
struct MessageWishes {
  std::vector<std::string> stop_sequences;  // of the client, which the reply names
  bool omit_thinking = false;               // blocks of thinking come without their text
};

std::unique_ptr<ReplyWriter> anthropic_reply(ReplyGrounds grounds, MessageWishes wishes);

/// Asks the server to keep a conversation. Clients that are told in `details` that it does not go
/// on without.
inline constexpr const char* kThreadField = "thread";

/// {"type": "error", "error": {"type", "message"}}
std::string anthropic_error(const HttpError& error);

}  // namespace baton
