// What a worker's own pool already holds of a request.
#pragma once

#include <cstdint>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// The blocks of `worker` that hold the first tokens of the request, `most_tokens` at most.
BlockPool::Match cached_prefix(const State& state, const Request& request, const Worker& worker,
                               std::uint32_t most_tokens, Reach reach = Reach::own);
/// Enters the blocks that the sequence has filled since the last call into its pool's prefix index.
void remember_prefix(State& state, Sequence& sequence);

}  // namespace baton
