// The fields of a chat request that say what is to be written down for the model: messages, tools
// and what goes to its template.
#pragma once

#include <string_view>

#include "frontend/chat/conversation.h"
#include "frontend/core/json_reader.h"
#include "frontend/core/served_model.h"

namespace baton {

inline constexpr std::size_t kMaxTools = 1000;
inline constexpr std::size_t kMaxToolNameBytes = 128;
inline constexpr std::size_t kMaxVariableNameBytes = 64;
inline constexpr std::size_t kMaxVariables = 64;
inline constexpr std::size_t kMaxVariableBytes = 16384;

/// messages, tools, tool_choice, chat_template_kwargs, add_generation_prompt,
/// continue_final_message; chat_template is refused. A model without a template takes only texts of
/// system, user and assistant. `body` is the text that `fields` was read from: tools and variables
/// are copied out of it, in the order of their keys.
void read_conversation(FieldReader& fields, std::string_view body, const ServedModel& model,
                       Conversation& conversation);

}  // namespace baton
