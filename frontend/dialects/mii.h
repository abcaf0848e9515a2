// DeepSpeed-MII's RESTful gateway: POST /mii/NAME with several prompts; NAME is the served model's.
#pragma once

#include "frontend/core/dialect.h"

namespace baton {

const Dialect& mii_dialect();

}  // namespace baton
