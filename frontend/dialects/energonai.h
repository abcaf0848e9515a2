// EnergonAI's generation server: POST /generation; 406 when the queue is full.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& energonai_dialect();

}  // namespace baton
