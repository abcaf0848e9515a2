// Replies of Ollama's API as bytes: one object, or a line of JSON for each piece. Pure.
#pragma once

#include <memory>
#include <string>

#include "frontend/core/generation.h"
#include "frontend/openai/translation.h"

namespace baton {

/// What a reply tells besides its text.
struct OllamaFacts {
  bool chat = false;       // "message", else "response"
  TimeNs received = 0;     // of the request; monotonic
  TimeNs wall_offset = 0;  // of unix time above monotonic time
};

std::unique_ptr<ReplyWriter> ollama_reply(ReplyGrounds grounds, const OllamaFacts& facts);

/// "2026-01-31T23:59:59.123456789Z"
std::string iso_time(TimeNs unix_time);

/// {"error": "..."}
std::string ollama_error(const HttpError& error);

}  // namespace baton
