// Replies of the OpenAI dialect as bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "frontend/generation.h"

namespace baton {

enum class ReplyShape : std::uint8_t { completion, chat };

struct ReplyFacts {
  std::string id;  // without "cmpl-" or "chatcmpl-"
  std::string model;
  std::int64_t created = 0;  // unix seconds
  bool include_usage = false;
};

/// The whole reply as one JSON object.
std::unique_ptr<ReplyWriter> openai_whole_reply(ReplyShape shape, const ReplyFacts& facts);

/// Server-sent events, one a call of text() that has text. Everything but the text is formatted
/// once, since this is what a token costs.
std::unique_ptr<ReplyWriter> openai_stream_reply(ReplyShape shape, const ReplyFacts& facts);

/// The request did not end by itself: its end is an error object.
bool is_error(const Ending& ending);
Status status_of(const Ending& ending);

}  // namespace baton
