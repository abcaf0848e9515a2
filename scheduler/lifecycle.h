// Moves of requests and sequences between phases, shared by the event handlers and the planner.
// Every function keeps the books: reference counts, fences, queues, decode sets.
#pragma once

#include <string>

#include "scheduler/events.h"

namespace baton {

// ---- sequences
/// A new sequence of `request` on `worker` with `blocks` fresh blocks, or nullptr if they are not free.
Sequence* place_sequence(State& state, Request& request, WorkerIndex worker, std::uint32_t blocks);
/// Releases the blocks, leaves the decode set, tells the worker to drop it. With `keep`, and steps in
/// flight, the entry stays (retiring) until they have ended; otherwise it is gone.
void release_sequence(State& state, SequenceId id, bool keep = false);
void join_decode_set(State& state, Sequence& sequence);
void leave_decode_set(State& state, Sequence& sequence);

// ---- requests
/// Back to the queue, at the place of its first arrival.
void requeue(State& state, Request& request);
/// Takes the request off its workers; it is queued again once the steps that name it have ended.
void preempt(State& state, Request& request);
/// Appends one sampled token, sends it, and ends the request when it is the last one.
void take_token(State& state, Request& request, Token token, Outbox& out);
/// Ends the request: sequences released, terminal sent (or held back for a static group).
void end_request(State& state, Request& request, FinishReason reason, ErrorCode code,
                 std::string message, Outbox& out);
/// Sends the terminal of an ended request (again).
void send_terminal(State& state, Request& request, Outbox& out);
/// Reason to end before anything is sampled: generated tokens already end it.
FinishReason already_finished(const Request& request);
/// Forgets an ended request, whatever its front end knows.
void forget(State& state, Request& request);

// ---- hand-off
/// Asks for the blocks of `request` that have become final since the last call; completes the hand-off
/// when everything has arrived.
void advance_handoff(State& state, Request& request, TimeNs now, Outbox& out);
/// Gives up the destination; the source stays and a new destination is looked for.
void drop_target(State& state, Request& request);
/// A pull has been answered: its pins go. Returns false if it is not known.
bool settle_transfer(State& state, TransferId id);
/// True if this request's tokens will be decoded on another worker than the one that prefills.
bool needs_handoff(const State& state, const Request& request, const Worker& source);

// ---- workers
/// Ends the worker's term: its sequences go back to the queue, its pool is wholly fenced.
/// `blame`: the worker died or hung, so every request in its steps may be the cause.
void end_term(State& state, WorkerIndex index, bool blame, const std::string& why, TimeNs now,
              Outbox& out);
/// The process has ended: its pool is gone; importers are told to close it. `blame`: not on purpose.
void lose_worker(State& state, WorkerIndex index, bool blame, const std::string& why, TimeNs now,
                 Outbox& out);
/// Prompt + output tokens that fit every ready worker's pool and model; 0 while there is none.
std::uint32_t max_context(const State& state);
bool any_decoder(const State& state);
bool any_prefiller(const State& state);

}  // namespace baton
