// The handlers behind apply(), one file per peer. Internal to the state machine.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

void apply_frontend(State& state, LinkId link, FrontendMessage&& message, TimeNs now, Outbox& out);
void apply_worker(State& state, LinkId link, WorkerMessage&& message, TimeNs now, Outbox& out);
void apply_tick(State& state, TimeNs gap, TimeNs now, Outbox& out);

/// Workers have come, or can read each other again: front ends hear at once of another max_context(),
/// which would else refuse prompts for up to a heartbeat that can be served by now.
void tell_context(State& state, Outbox& out);

/// Cancels what the front end has open; its entry is free for another one.
void lose_frontend(State& state, FrontendIndex index, const std::string& why, Outbox& out);
/// Its process has ended: lost, or away for a while if it may have a successor.
void frontend_gone(State& state, FrontendIndex index, TimeNs now, Outbox& out);
/// Starts or ends draining; `leave`: the worker wants to exit afterwards (SIGTERM).
void set_draining(State& state, WorkerIndex index, bool draining, bool leave, TimeNs now,
                  Outbox& out);
/// Answers Register once nobody holds the older incarnation's pool, or the time-out has passed.
void try_admit_worker(State& state, WorkerIndex index, TimeNs now, Outbox& out);

}  // namespace baton
