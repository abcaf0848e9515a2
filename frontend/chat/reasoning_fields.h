// The fields of a chat request that say how much the model is to reason before it answers.
#pragma once

#include "frontend/chat/conversation.h"
#include "frontend/core/json_reader.h"
#include "frontend/core/served_model.h"

namespace baton {

/// reasoning_effort, enable_thinking and thinking, as variables of the template, where it reads
/// such: the effort itself, or whether to reason at all. "auto" leaves it to the template.
/// reasoning_effort counts before enable_thinking, and that before thinking. What the model cannot
/// do is ignored, or an error of a strict reader. thinking_token_budget, or budget_tokens of
/// thinking, is the conversation's; one that cannot be kept to is named.
void read_reasoning(FieldReader& fields, const ServedModel& model, Conversation& conversation);

}  // namespace baton
