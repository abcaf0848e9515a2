// What a conversation needs before a template can write it down, whoever wrote it: one system
// message at its beginning, and results that name their calls.
#pragma once

#include <vector>

#include "frontend/chat/conversation.h"

namespace baton {

/// Joins the system and developer messages that a conversation begins with: the role is the
/// first one's, an empty line stands between their texts. Many templates read only the first.
void join_leading_system(std::vector<ChatMessage>& messages);

/// Gives calls without an id one of nine letters and digits, and results without a
/// `tool_call_id` that of their call: the first call of the turn before that has their name and no
/// result, or else the first without a result.
void match_calls(std::vector<ChatMessage>& messages);

}  // namespace baton
