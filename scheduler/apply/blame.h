// Who may be the cause of a worker's death, and what follows.
//
//  - Whatever ran on the worker may be: the rows of its steps in flight, the pulls that it ran, the
//    grammars that it compiled. Each of these causes is counted one death in that stage. A row or a
//    pull is one request's. A grammar is that of all requests which have it: they are suspected and
//    end together, and those that come later begin with its count (State::grammar_deaths).
//  - A request that could be the cause once more (is_suspect) does that work alone: no step, pull
//    or grammar of anybody else is outstanding on the worker beside it. One whose pulls killed does
//    not pull any more: it decodes where it is prefilled.
//  - The death that ends a request is one that its cause was alone with. Beside others its count
//  stops one
//    short of that, so nobody ends for what somebody else did. If others are suspected of the same
//    deaths, it takes two that it was alone with: the first may be an outsider's (an operator's
//    kill), and meets whoever has the turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/apply/events.h"

namespace baton {

struct Suspicion {
  std::uint64_t request = 0;
  Stage stage = Stage::prefill;
  std::uint64_t grammar = 0;  // its key, in Stage::compile
};
using Suspicions = std::vector<Suspicion>;

/// What `worker` was doing, for whom: what was sent until `latest` (what reached it later cannot be
/// why it fell silent before). Without repeats.
Suspicions running_on(const State& state, WorkerIndex worker, TimeNs latest = kNever);
/// Whose that record is.
Suspicions owners_of(const State& state, WorkerIndex worker, const Outstanding& record);

/// A worker died, or hung, in this work. Ends who has used up its tries.
void blame(State& state, const Suspicions& suspicions, Outbox& out);
/// The worker's term ended, nobody knows why yet: remembers who was at work there, for the case
/// that its process turns out to have died.
void note_unblamed(State& state, WorkerIndex worker);
/// The worker's steps name the request, which waits for them no longer: if one of them turns out to
/// have killed or hung the process, it may have been that request's, or anybody's beside it.
void note_given_up(State& state, WorkerIndex worker, const Request& request);
/// It had: a message to a dead worker fails before anything else shows its death, and without this
/// whoever kills workers would do so for ever. Who got on elsewhere meanwhile is not blamed.
void blame_late(State& state, Worker& worker, Outbox& out);

/// One more death in that stage may end it: it does that work alone.
bool is_suspect(const State& state, const Request& request, Stage stage);
/// ... its prompt or its decoding.
bool is_suspect(const State& state, const Request& request);
/// Its last try at pulling would be one; it decodes where it is prefilled instead.
bool avoids_pulls(const State& state, const Request& request);

}  // namespace baton
