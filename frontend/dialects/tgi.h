// Hugging Face's text-generation-inference: POST /generate, /generate_stream, GET /info. Its
// /v1/chat/completions is the dialect openai.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& tgi_dialect();

}  // namespace baton
