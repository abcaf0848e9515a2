// A pool that outlives its worker. A memory process keeps it, so the end of a term takes nothing
// from it but what was being written (trust.h): its sequences are parked with their blocks, what
// it caches is found again, and other workers go on reading it. When the worker, or its next
// process, says Hello with the same allocation, the sequences go on where they were.
//
// Only what a request has to itself and what is wholly trusted is parked. Everything else goes the
// way of any lost place: targets of hand-offs, prompts whose beginning was being pulled or copied,
// and beam searches, which begin again.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// What becomes of the requests that have a place on a worker whose term ends.
enum class Places : std::uint8_t {
  wait,   // for its return: it died, or lost a message
  leave,  // nobody knows when it comes back: it hangs, is silent, or leaves on purpose
};

/// The worker is out of term, its steps and pulls are unanswered for ever.
void keep_pool(State& state, WorkerIndex index, Places places);
/// It is in term again, with the same pool.
void resume_pool(State& state, WorkerIndex index, Outbox& out);
/// Requests that waited for its return are computed again, perhaps elsewhere; what their blocks
/// hold stays in the cache.
void requeue_parked(State& state, WorkerIndex index);
/// Nobody waits longer than `kept_wait`, and the pool of a process that is gone is given up then.
void judge_kept_pool(State& state, WorkerIndex index, TimeNs now, Outbox& out);

}  // namespace baton
