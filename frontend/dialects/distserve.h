// DistServe's API: POST /generate, whose whole reply tells when each token came and how the request
// went through its phases.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& distserve_dialect();

}  // namespace baton
