// Ollama's API: POST /api/chat and /api/generate, which stream lines of JSON unless they are told
// not to, and what its clients ask about the models. Pure.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& ollama_dialect();

}  // namespace baton
