// Parts of structural tags (text/grammar/grammar_engine.h) that describe calls as a model's family
// writes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/chat/calls/call_format.h"
#include "frontend/chat/conversation.h"
#include "frontend/core/generation.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

using OrderedJson = nlohmann::ordered_json;

inline constexpr std::string_view kJsonStyle = "json";

/// How the schemas of functions are taken.
struct ToolSchemas {
  AskedSchemas asked;
  SchemaDefaults defaults;
};

/// What a family writes around a call's name and arguments.
struct CallText {
  std::string before_name;
  std::string behind_name;
  std::string end;
  std::string_view style = kJsonStyle;  // of the arguments, as xgrammar names it
};

OrderedJson const_string(std::string_view text);
OrderedJson sequence(std::vector<OrderedJson> elements);
OrderedJson any_of(std::vector<OrderedJson> elements);
OrderedJson optional(OrderedJson content);
std::string structural_tag(OrderedJson format);

/// {"name": NAME, "arguments": {...}}
CallText object_text(const CallFormat& format, const std::string& open, const std::string& close);

bool is_special(const Tokenizer& tokenizer, std::string_view mark);
/// A text whose special tokens are written as such.
OrderedJson marked_text(const Tokenizer& tokenizer, std::string_view text);

bool is_strict(const OrderedJson& function);
/// The arguments of a function. `strict` means closed objects, and that every keyword is enforced;
/// others are enforced as far as they can be, and a schema that cannot be taken is any object.
OrderedJson arguments_of(const OrderedJson& function, std::string_view style,
                         const ToolSchemas& schemas);
/// The arguments of a function that is not held to its schema.
OrderedJson any_arguments(const OrderedJson& function);

}  // namespace baton
