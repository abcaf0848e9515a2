// Blocks on their way from the worker that computed them to the one that decodes, and the pulls
// that carry them.
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/apply/events.h"

namespace baton {

/// Asks for the blocks of `request` that have become final since the last call, or, while a suspect
/// has its turn at the target, remembers to (State::held_pulls); completes the hand-off when
/// everything has arrived.
void advance_handoff(State& state, Request& request, TimeNs now, Outbox& out);
/// Gives up the target; the source stays and a new target is looked for.
void drop_target(State& state, Request& request);
/// A pull has been answered: its pins go. Returns false if it is not known.
bool settle_pull(State& state, PullId id);
/// The worker `to` has all blocks of `pull`, but those of `blocks` differ from what was computed.
/// Neither they nor the request's place is of use any more: its prompt is computed again.
void take_damage(State& state, const OpenPull& pull, std::span<const BlockId> blocks, Outbox& out);
/// The sequence whose pulls count now: that of a prefix or of a gathering, else the target; 0:
/// none.
SequenceId pulled_into(const State& state, const Request& request);
/// True if this request's tokens will be decoded on another worker than the one that prefills.
bool needs_handoff(const State& state, const Request& request, const Worker& worker);

/// Pulls `columns` of the pool of `exporter` into those of `target` behind what it has pulled
/// already; nothing into places that the target's windows have left behind.
void send_pull(State& state, const Request& request, WorkerIndex exporter,
               std::span<const BlockId> columns, Sequence& target, TimeNs now, Outbox& out);
/// Pulls blocks of the pool of `exporter` into as many of that of `target`'s worker, and pins both
/// until it is answered.
void open_pull(State& state, const Request& request, WorkerIndex exporter,
               std::span<const BlockId> from, std::span<const BlockId> to, Sequence& target,
               TimeNs now, Outbox& out);
/// Sends the Pull of `pull` and keeps the target's books.
void post_pull(State& state, OpenPull& pull, TimeNs now, Outbox& out);

}  // namespace baton
