// The fields that hold a reply to a grammar: OpenAI's response_format, vLLM's guided_json and its
// like, and structured_outputs.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/core/json_reader.h"
#include "frontend/openai/request_fields.h"

namespace baton {

inline constexpr std::size_t kMaxGrammarChoices = 1024;

/// Sets the grammar of `request`. At most one of the fields may ask for one. `body` is the text
/// that `fields` reads: an object's keys come in the order of its schema's. Whether the grammar is
/// right is found out later, by a process of its own. After read_stop_extras().
void read_grammar(FieldReader& fields, std::string_view body, bool ignore_eos,
                  const SchemaDefaults& defaults, ParsedRequest& request);

/// The same from fields of another API that each hold one kind of grammar: {"json", "regex" or
/// "grammar", the field's name}. `text` is the text of the object that `fields` reads.
void read_named_grammars(FieldReader& fields,
                         const std::vector<std::pair<std::string, std::string>>& kinds,
                         std::string_view text, const SchemaDefaults& defaults,
                         ParsedRequest& request);

/// The same from one field of another API: {"type": "json" or "regex", "value": a schema (an object
/// or its text), or the expression}. `text` is the text of the object that `fields` reads.
void read_typed_grammar(FieldReader& fields, const std::string& name, std::string_view text,
                        const SchemaDefaults& defaults, ParsedRequest& request);

}  // namespace baton
