// Replies whose calls of strict functions must be well-formed, with arguments that match their
// schema, where the model decides whether it calls (tool_choice "auto").
#pragma once

#include <optional>
#include <string>

#include "frontend/chat/call_tags.h"
#include "frontend/chat/conversation.h"
#include "frontend/chat/reply_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// A structural tag: free text up to a mark that opens a call; from there a call of one of the
/// functions, whose arguments match its schema if it is strict and are an object if not; then free
/// text again. `reasoning` and `may_reason`: as the reply's parser says at its start. Nothing: the
/// family's calls have no mark in front, or their arguments are no JSON.
std::optional<std::string> strict_calls(const ForcedChoice& choice, const ToolSchemas& schemas,
                                        const ReplyGrammar& family, const Tokenizer& tokenizer,
                                        const ReplyParser& parser);

/// The names of strict functions, for a message: "get_weather, get_time".
std::string strict_names(const ForcedChoice& choice);

}  // namespace baton
