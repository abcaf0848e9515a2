// The messages of a chat request. What the client says now is checked; what models and tools said
// before is taken as it is, since a conversation must be able to go on from there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/chat/conversation.h"
#include "frontend/core/json_reader.h"

namespace baton {

inline constexpr const char* kToolNameRule = "must be 1 to 128 characters out of A-Z a-z 0-9 . _ -";
bool is_tool_name(std::string_view text);

/// "messages". `templated`: the model's template may do something with tools; otherwise only texts
/// of system, developer, user and assistant are taken.
void read_messages(FieldReader& fields, bool templated, std::vector<ChatMessage>& messages);

/// What stands for a part of a tool's result that a text model cannot read: "[image omitted]" of
/// "image_url", "input_image" and "image".
std::string omitted_part(std::string_view type);

/// Arguments of an earlier call: `given` where it is a JSON object, else "{}", which `field` of
/// `call` is then named for. Nothing and an empty text are "{}", too.
std::string earlier_arguments(FieldReader& call, const std::string& field, std::string_view given);

}  // namespace baton
