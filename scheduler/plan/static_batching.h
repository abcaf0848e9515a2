// Static batching, the baseline: collect requests for a while, run them as one group with one
// shared set of limits, answer them together, then start the next group.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// Starts the next group when the last one has been answered and static_batch_size beams wait (a
/// request without a search is one), or somebody has waited for static_interval. With
/// static_same_config only requests with the generation parameters of the queue's head join it.
/// Does nothing with continuous batching.
void form_static_group(State& state, TimeNs now, Outbox& out);

/// True if the request may be admitted: always with continuous batching, else members of the group.
bool static_batch_allows(const State& state, const Request& request);

}  // namespace baton
