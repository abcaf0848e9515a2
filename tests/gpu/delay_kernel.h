// A kernel that only takes time, so that what others do meanwhile can be tested.
#pragma once

#include "workers/cuda/types.h"

namespace baton::cuda {

/// Queues it on `stream`.
void delay(int microseconds, Stream stream);

}  // namespace baton::cuda
