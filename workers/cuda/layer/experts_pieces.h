// The kernel of experts for any device and any number of rows, alone in deterministic mode, as
// experts.cu calls it. Part of experts.h.
#pragma once

#include "workers/cuda/layer/experts_ring.h"

namespace baton::cuda {

/// One product of pieces of up to 64 rows; `call` says how it ends, and whether a row's sum has one
/// order.
void experts_by_pieces(const StreamProduct& product, const ExpertCall& call, Stream stream);

}  // namespace baton::cuda
