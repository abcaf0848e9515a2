// A worker's role may change while it works. Nothing that is placed moves for it: what decodes on a
// worker that prefills from now on stays to its end, and what was to be handed over by one that
// decodes from now on stays there if it fits. Only where new work goes is decided by the new role.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// Also of a worker that is away: its next process is given the role as well, until the scheduler
/// ends. Should that happen first, the worker itself tells the next one.
void set_role(State& state, WorkerIndex index, Role role, TimeNs now, Outbox& out);
/// Says so if the worker was started with less room for a step than its role's steps have.
void warn_of_small_steps(const Settings& settings, const Worker& worker, Outbox& out);
/// Tells a process what role its name was given, unless that is the one that it knows: the one that
/// it registered with, or was told since.
void tell_role(Worker& worker, Outbox& out);

}  // namespace baton
