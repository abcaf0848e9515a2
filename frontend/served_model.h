// The model that a front end serves, as the HTTP dialects see it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "frontend/chat_format.h"
#include "frontend/generation.h"
#include "frontend/tokenizer.h"

namespace baton {

struct ServedModel {
  std::string name;  // as clients call it
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatFormat> chat;  // null: the chat route answers 400
  std::uint32_t default_max_tokens = 512;  // when a client gives no limit
};

/// What a dialect makes of a body: a request to run, or the reply that says what is wrong with it.
using ParseOutcome = std::variant<ParsedRequest, HttpError>;

}  // namespace baton
