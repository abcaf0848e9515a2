// What a call costs inside a step.
#pragma once

#include <functional>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// Microseconds a call, queued on `stream` by call(i) for i in [0, calls): from a graph, so that
/// the host's time does not count and calls overlap as they will in a step. The best of two runs,
/// after one to warm up. Throws CudaError, and what call() throws.
double graph_us(Stream stream, int calls, const std::function<void(int)>& call);

}  // namespace baton::cuda
