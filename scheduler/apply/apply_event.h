// The state machine: one event in, state changed, messages out. Never reads a clock.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// Applies one event at time `now`. Whatever a peer sends, the state stays consistent (audit.h).
void apply(State& state, Event&& event, TimeNs now, Outbox& out);

}  // namespace baton
