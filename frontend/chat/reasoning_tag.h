// Grammars of what follows a reasoning.
#pragma once

#include <optional>
#include <string>

#include "frontend/chat/call_tags.h"
#include "frontend/chat/reply_parser.h"
#include "ipc/types.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// A reasoning as part of a structural tag: up to its closing mark if it has `begun`; otherwise one
/// may come, or none. Its marks may be special tokens.
OrderedJson reasoning_tag(const ReplyGrammar& family, const Tokenizer& tokenizer, bool begun);

/// `grammar` (of `kind`) behind it, as a structural tag. Nothing: the family's marks are special
/// tokens, which no grammar of this kind can hold.
std::optional<std::string> behind_reasoning(GrammarKind kind, const std::string& grammar,
                                            const ReplyGrammar& family, const Tokenizer& tokenizer,
                                            bool begun);

}  // namespace baton
