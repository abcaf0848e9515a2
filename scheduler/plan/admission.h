// What a request is told, or cut to, when a worker could take it on: checks that need the worker's facts.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// Ends a request that has outgrown `worker`'s pool or model (it was accepted before anybody knew them);
/// true if it did.
bool refuse_too_long(State& state, const Worker& worker, Request& request, Outbox& out);

/// False: the request's beams would stay on `worker` and do not fit it to their end. If they fit nobody
/// who may take the prompt, the request has been ended.
bool beams_fit(State& state, const Worker& worker, Request& request, TimeNs now, Outbox& out);

/// An answer ends where the smallest pool does, also if the front end could not know that.
void clamp_output(const State& state, Request& request);

}  // namespace baton
