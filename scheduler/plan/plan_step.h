// Decides what every worker does next: drops, adds, growth, prompt chunks, decode, pulls.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// Starts what can be started now: hand-offs, then a step for every worker with room in its
/// pipeline. Call after each batch of events.
void plan(State& state, TimeNs now, Outbox& out);

}  // namespace baton
