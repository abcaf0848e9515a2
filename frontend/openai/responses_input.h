// "instructions" and "input" of /v1/responses as messages of a chat. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "frontend/openai/translation.h"

namespace baton::responses {

/// Takes both fields. Items of tools that this server does not run, and references to items that it
/// does not keep, are left out by name. `templated`: the model's template may do something with
/// tools.
OrderedJson read_input(FieldReader& fields, bool templated);

/// "encrypted_content" of a reasoning item: its text in base64, for clients that send back nothing
/// else. Nothing is encrypted: the client has the text anyway.
std::string packed_reasoning(std::string_view text);
/// The text; nothing where another server made it.
std::optional<std::string> unpacked_reasoning(std::string_view packed);

}  // namespace baton::responses
