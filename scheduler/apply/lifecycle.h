// Moves of requests and sequences between phases, shared by the event handlers and the planner.
// Every function keeps the books: reference counts, fences, queues, decode sets.
#pragma once

#include <span>
#include <string>

#include "scheduler/apply/events.h"
#include "scheduler/apply/blame.h"

namespace baton {

// ---- sequences
/// Who writes first to the fresh blocks of a sequence: steps of its worker from the next plan on, or a pull,
/// beside the steps.
enum class Writer : std::uint8_t { steps, pull };
/// A new sequence of `request` on `worker` with `blocks` blocks, those of `prefix` (of cached_prefix(),
/// just now) and fresh ones; nullptr if they are not free. What the host part holds of the prefix is copied into
/// fresh ones by the worker's next plan, which must follow.
Sequence* place_sequence(State& state, Request& request, WorkerIndex worker, std::uint32_t blocks,
                         const BlockPool::Match& prefix, Writer writer);
/// Releases the blocks, leaves the decode set, tells the worker to drop it. With `keep`, and steps in
/// flight, the entry stays (retiring) until they have ended; otherwise it is gone.
void release_sequence(State& state, SequenceId id, bool keep = false);
/// Releases every sequence of the request, and its beam search goes back to the start.
void release_places(State& state, Request& request);
/// A prompt that is computed stays on its worker to decode.
void begin_decode(State& state, Request& request, Sequence& sequence);
void join_decode_set(State& state, Sequence& sequence);
void leave_decode_set(State& state, Sequence& sequence);

// ---- prefix cache
/// The blocks of `worker` that hold the first tokens of the request, `most_tokens` at most.
BlockPool::Match cached_prefix(const State& state, const Request& request, const Worker& worker,
                               std::uint32_t most_tokens, Reach reach = Reach::own);
/// Enters the blocks that the sequence has filled since the last call into its pool's prefix index.
void remember_prefix(State& state, Sequence& sequence);

// ---- prefixes that other pools hold (prefix_pull.cpp)
/// Settings allow it.
bool pulls_prefixes(const Settings& settings);
/// `to` may pull the beginning of this request out of the pool of `from`.
bool may_pull_prefix(const State& state, const Request& request, const Worker& from, const Worker& to);
/// Blocks of another pool that hold the request's beginning behind what a worker itself knows of it.
struct PrefixSource {
  WorkerIndex worker = kNobody;  // none is worth it
  std::vector<BlockId> blocks;
};
/// Where most of it can be pulled from to `worker`, which knows the first `own_blocks` blocks.
PrefixSource find_prefix(const State& state, const Request& request, WorkerIndex worker,
                         std::size_t own_blocks);
/// Those blocks are on their way to `worker` for somebody else, and will soon be found there.
bool is_being_pulled(const State& state, const PrefixSource& prefix, WorkerIndex worker);
/// Asks for them; `sequence`, just placed, waits for the answer before its worker hears of it.
void pull_prefix(State& state, Request& request, Sequence& sequence, const PrefixSource& prefix,
                 TimeNs now, Outbox& out);
/// The answer: the rest (if it failed, all that was asked for, too) is computed.
void prefix_pulled(State& state, Request& request, bool failed);

// ---- requests
/// A moment of its life has come: kept if it is the first one and the client wants to know.
void note(Request& request, LifetimeMoment moment, TimeNs now);
/// Back to the queue, at its place.
void requeue(State& state, Request& request);
/// Takes the request off its workers; it is queued again once the steps that name it have ended.
void preempt(State& state, Request& request);
/// Appends one sampled token, sends it, and ends the request when it is the last one. `logprobs` may be
/// null: none were asked for.
void take_token(State& state, Request& request, Token token, const LogprobReader::Entry* logprobs,
                Outbox& out);
/// Sends the tokens [begin, end) of `generated` again, with what belongs to them.
void resend_tokens(const Request& request, std::uint32_t begin, std::uint32_t end, Outbox& out);
/// Ends the request: sequences released, terminal sent (or held back for a static group).
void end_request(State& state, Request& request, FinishReason reason, ErrorCode code,
                 std::string message, Outbox& out);
/// Sends the terminal of an ended request (again).
void send_terminal(State& state, Request& request, Outbox& out);
/// Reason to end before anything is sampled: generated tokens already end it.
FinishReason already_finished(const Request& request);
/// Forgets an ended request, whatever its front end knows.
void forget(State& state, Request& request);

// ---- beam search (beams.cpp)
/// Most blocks that the beams of `request` can need at once on `worker`, shared ones counted once.
std::uint32_t beam_blocks(const Worker& worker, const Request& request);
/// `worker` can decode the request with that many tokens, and all its beams to their end, if it is alone.
bool can_hold(const Worker& worker, const Request& request, std::uint32_t tokens);
/// Why it cannot, in numbers.
std::string cannot_hold(const Worker& worker, const Request& request, std::uint32_t tokens);
/// Blocks that the next step of a beam search must be given.
std::uint32_t beam_growth(const State& state, const Request& request);
/// Adds that step to a plan: forks, copies, growth, rows. The blocks are free.
void plan_beams(State& state, Request& request, StepPlan& plan, InFlightStep& step);
/// Takes what a worker says may follow its beams; ends the searches that are over.
void take_candidates(State& state, WorkerIndex worker, const StepResult& result, Outbox& out);

// ---- grammars (grammars.cpp)
/// Prompts that may be admitted before their grammar is ready, so that both take place at once; more would take the
/// places of those who need not wait.
constexpr std::uint32_t kMostHeld = 8;
/// What workers and scheduler call this grammar; 0: there is none.
std::uint64_t grammar_key(const SamplingParams& sampling);
/// `worker` draws by the request's grammar, if it has one, without waiting.
bool grammar_ready(const Worker& worker, const Request& request);
/// Tells `worker` of a grammar that is not ready there, unless it has just been told, or a suspect has its turn there.
/// `awaited`: the request has a place there. A suspect's own grammar takes such a turn (compile_alone()).
void ask_grammar(const State& state, Worker& worker, const Request& request, bool awaited, TimeNs now, Outbox& out);
/// The oldest grammar that is not answered is asked for again now and then: question or answer may be lost. One that
/// nobody wants any more is forgotten.
void repeat_grammar(State& state, Worker& worker, TimeNs now, Outbox& out);
/// For a suspect: nothing is outstanding on `worker`, and nothing begins before the answer.
void compile_alone(Worker& worker, const Request& request, TimeNs now, Outbox& out);

// ---- hand-off
/// Asks for the blocks of `request` that have become final since the last call, or, while a suspect has its turn at
/// the destination, remembers to (State::held_pulls); completes the hand-off when everything has arrived.
void advance_handoff(State& state, Request& request, TimeNs now, Outbox& out);
/// Gives up the destination; the source stays and a new destination is looked for.
void drop_target(State& state, Request& request);
/// A pull has been answered: its pins go. Returns false if it is not known.
bool settle_transfer(State& state, TransferId id);
/// The worker `to` has all blocks of `transfer`, but those of `blocks` differ from what was computed. Neither
/// they nor the request's place is of use any more: its prompt is computed again.
void take_damage(State& state, const Transfer& transfer, std::span<const BlockId> blocks, Outbox& out);
/// True if this request's tokens will be decoded on another worker than the one that prefills.
bool needs_handoff(const State& state, const Request& request, const Worker& source);

/// Pulls `blocks` of the pool of `exporter` into those of `target` behind what it has pulled already.
void send_pull(State& state, const Request& request, WorkerIndex exporter,
               std::span<const BlockId> blocks, Sequence& target, TimeNs now, Outbox& out);
/// Sends the Pull of `transfer` and keeps the destination's books.
void post_pull(State& state, Transfer& transfer, TimeNs now, Outbox& out);

// ---- which pools can be read
/// False: `importer` has said that it cannot map the pool of `exporter`.
bool reaches(const Worker& exporter, const Worker& importer);
/// Somebody who decodes, and takes work, can read the pool of `exporter`.
bool reaches_some_decoder(const State& state, const Worker& exporter);
/// Some prefill worker that takes work has a pool that `importer` can read.
bool is_fed(const State& state, const Worker& importer);
/// Asks `importer` whether it can read the pool of `exporter`, unless it is being asked.
void probe(State& state, WorkerIndex exporter, WorkerIndex importer, TimeNs now, Outbox& out);
/// Asks about every pair that `joined` makes with others.
void probe_peers(State& state, WorkerIndex joined, TimeNs now, Outbox& out);
/// Asks again about pools that `importer` could not read, when it is time.
void probe_again(State& state, WorkerIndex importer, TimeNs now, Outbox& out);
void probe_answered(State& state, const Transfer& transfer, const std::string& failure, TimeNs now,
                    Outbox& out);

// ---- workers
/// Whose fault the end of a term is: known now, or only if the process turns out to have died.
struct Blame {
  Suspicions now;
  bool later = false;
};
inline const Blame kBlameLater{{}, true};
/// Ends the worker's term: its sequences go back to the queue, its pool is wholly fenced.
void end_term(State& state, WorkerIndex index, const Blame& blamed, const std::string& why, Outbox& out);
/// The process has ended: its pool is gone; importers are told to close it. `blamed`: not on purpose, so that
/// whoever it worked for may be the cause; also those of a term that ended just before and blamed nobody yet.
void lose_worker(State& state, WorkerIndex index, bool blamed, const std::string& why, TimeNs now,
                 Outbox& out);
/// Prompt + output tokens that fit the pool and model of some worker that decodes (of any worker, where none does):
/// also of one that is away and may come back. Longer ones are refused; these wait. 0 while none was ever there.
std::uint32_t max_context(const State& state);
bool any_decoder(const State& state);

}  // namespace baton
