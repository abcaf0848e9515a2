// Workers' terms and incarnations: who may be believed, whose memory may be reused.
#pragma once

#include <string>

#include "scheduler/apply/blame.h"
#include "scheduler/apply/kept_pool.h"

namespace baton {

/// Whose fault the end of a term is: known now, or only if the process turns out to have died.
struct Blame {
  Suspicions now;
  bool later = false;
};
inline const Blame kBlameLater{{}, true};
inline const Blame kBlameNobody{};
/// Ends the worker's term: its sequences go back to the queue, its pool is wholly fenced. If the
/// pool outlives its process, they may wait there instead (kept_pool.h).
void end_term(State& state, WorkerIndex index, const Blame& blamed, Places places,
              const std::string& why, Outbox& out);
/// What the loss of its place on a worker means for one request. `where`: its own worker, or
/// another one that has blocks of it.
void lose_place(State& state, Sequence& sequence, WorkerIndex where);
/// Sequences that other workers run and that have blocks in that store, whose content is given up,
/// are computed again; with `reserved_only` those that are to go on there.
void lose_extents(State& state, StoreIndex store, bool reserved_only);
/// The worker's process dies of a fault and may have written anywhere in its pool. Its term ends
/// and its pool is given up; what open pulls bring from there is not used.
void doubt_pool(State& state, WorkerIndex index, TimeNs now, Outbox& out);
/// Nobody will say Hello with this pool again: what is parked there is computed again, importers
/// are told to close it.
void give_up_pool(State& state, WorkerIndex index, TimeNs now, Outbox& out);
/// The process has ended: its pool is gone, unless it is kept; importers are told to close it.
/// `blamed`: not on purpose, so that whoever it worked for may be the cause; also those of a term
/// that ended just before and blamed nobody yet.
void lose_worker(State& state, WorkerIndex index, bool blamed, const std::string& why, TimeNs now,
                 Outbox& out);
/// The shell knows nobody by that link any more. False, and nothing: a peer that lives has it.
bool forget_link(State& state, LinkId link);
/// Prompt + output tokens that fit the pool and model of some worker that decodes (of any worker,
/// where none does): also of one that is away and may come back. Longer ones are refused; these
/// wait. 0 while none was ever there. With `elastic: auto`, those that fit the pools of several
/// workers together.
std::uint32_t max_context(const State& state);
/// What front ends are told, and requests are accepted by: max_context(), or more where pools have
/// held that together and one of them is away. A request that needs it waits, and is `unavailable`
/// in the end.
std::uint32_t promised_context(const State& state);
/// Likewise, of what stays on one worker.
std::uint32_t largest_context(const State& state);
bool any_decoder(const State& state);

}  // namespace baton
