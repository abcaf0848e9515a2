// LightLLM's API: POST /generate, /generate_stream. Its /v1/chat/completions is the dialect openai.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& lightllm_dialect();

}  // namespace baton
