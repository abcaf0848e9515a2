// Replies that must be calls: tool_choice "required", or the name of a function.
#pragma once

#include <string>
#include <string_view>

#include "frontend/chat/call_tags.h"
#include "frontend/chat/conversation.h"
#include "frontend/chat/reply_parser.h"
#include "ipc/status.h"
#include "ipc/types.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// How a reply is held to that.
struct ForcedReply {
  std::string begun;    // marks that the prompt ends with: the reply goes on behind them
  std::string grammar;  // a structural tag
};

/// Calls as the model's family writes them, each with the arguments that its function's parameters
/// allow. A mark that is a special token is not drawn by the model but is put in front of its
/// reply. invalid_argument: the family's way is not known.
Result<ForcedReply> forced_calls(const ForcedChoice& choice, const ReplyGrammar& family,
                                 const Tokenizer& tokenizer, const ToolSchemas& schemas = {});

}  // namespace baton
