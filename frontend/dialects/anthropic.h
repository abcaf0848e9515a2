// Anthropic's API: POST /v1/messages and /v1/messages/count_tokens, as its clients and the coding
// agents that are built on it ask. Pure.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& anthropic_dialect();

}  // namespace baton
