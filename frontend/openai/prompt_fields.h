// The prompts of a completions request.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "frontend/core/json_reader.h"
#include "frontend/openai/request_fields.h"

namespace baton {

/// Either text or ids.
struct AskedPrompt {
  std::optional<std::string_view> text;  // into the body's JSON
  std::vector<Token> ids;
};

struct AskedPrompts {
  std::vector<AskedPrompt> list;  // kMaxPrompts at most
  bool add_special_tokens = true;
  std::optional<std::string_view> suffix;  // what comes behind the reply
};

/// prompt: a string, an array of token ids, or an array of such; add_special_tokens.
void read_prompts(FieldReader& fields, const ServedModel& model, AskedPrompts& prompts);

/// "prompt", or "prompt[2]" where there are several.
std::string prompt_name(std::size_t index, std::size_t count);

}  // namespace baton
