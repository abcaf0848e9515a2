// The OpenAI API as one of the front end's dialects: which function answers on which path.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& openai_dialect();

}  // namespace baton
