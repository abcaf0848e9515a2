// Which decode worker takes a prompt that is computed, or being computed, elsewhere.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// Gives waiting hand-offs a target, oldest first; the workers that one has to wait for take none
/// of those behind it, so that a long prompt is not overtaken for ever.
void place_handoffs(State& state, TimeNs now, Outbox& out);

}  // namespace baton
