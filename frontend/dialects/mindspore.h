// MindSpore llm-serving's API: POST /models/{llama2,internlm}[/generate|/generate_stream], GET
// /serving/*. Its own server loses several parameters of a request in a mixed batch; here each
// request keeps its own.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

/// A whole reply is one line of JSON, a stream one line of JSON a token (no "data:" unless
/// return_protocol says something other than "sse"). A prompt that does not fit is told inside a
/// reply of status 200, as that server does: finish_reason prompt_out_of_range or
/// prompt_token_ids_empty.
const Dialect& mindspore_dialect();

}  // namespace baton
