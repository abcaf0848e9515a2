// A worker's role may change while it works. Nothing that is placed moves for it: what decodes on a
// worker that prefills from now on stays to its end, and what was to be handed over by one that
// decodes from now on stays there if it fits. Only where new work goes is decided by the new role.
#pragma once

#include <optional>
#include <string>

#include "scheduler/apply/events.h"

namespace baton {

/// Also of a worker that is away: its next process is given the role as well, until the scheduler
/// ends. Should that happen first, the worker itself tells the next one. `why`: for the log.
void set_role(State& state, WorkerIndex index, Role role, const std::string& why, TimeNs now,
              Outbox& out);
/// An operator's word: it keeps the role, also where roles change by themselves; without a role
/// that is over.
void hold_role(State& state, WorkerIndex index, std::optional<Role> role, TimeNs now, Outbox& out);
/// `roles: auto` (plan/auto_roles.h): gives at most one worker another role. Now and then.
void turn_roles(State& state, TimeNs now, Outbox& out);
/// Says so if the worker was started with less room for a step than its role's steps have.
void warn_of_small_steps(const Settings& settings, const Worker& worker, Outbox& out);
/// Tells a process what role its name was given, and whether an operator says so, unless that is
/// what it knows: what it registered with, or was told since.
void tell_role(Worker& worker, Outbox& out);

}  // namespace baton
