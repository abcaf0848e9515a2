// Replies of Ollama's API as bytes: one object, or a line of JSON for each piece. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>

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

/// 64 hexadecimal digits that stand for the model's name: a front end does not read the weights.
/// Clients show the first 12; the ollama program crashes on fewer.
std::string ollama_digest(std::string_view model_name);

/// {"error": "..."}
std::string ollama_error(const HttpError& error);

}  // namespace baton
