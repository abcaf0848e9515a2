// The API of LLM-Inference-Deployment-Tutorial: POST /completion/v1 (its static batching server),
// /completion/v2 (its continuous batching server), /chat_completion/v1, GET /model_id. Which kind
// of batching serves a request is the scheduler's setting here, not the path's.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& tutorial_dialect();

}  // namespace baton
