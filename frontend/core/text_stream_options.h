// How a request wants the text of its reply.
#pragma once

#include <span>

#include "frontend/core/generation.h"
#include "ipc/types.h"
#include "text/text_stream.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// The options of one prompt of a parsed request. The text continues the prompt's unless the prompt
/// is empty or ends in a special token (a turn marker).
TextStreamOptions text_stream_options(const Tokenizer& tokenizer, const ParsedRequest& request,
                                      std::span<const Token> prompt);

}  // namespace baton
