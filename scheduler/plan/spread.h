// A long prompt over several workers at the same time (`elastic: auto`, docs/adr/0027): its chunks
// are dealt out in turns, each worker keeps the keys and values of its own, and reads those of the
// others in place, while they are being written: layer by layer behind whoever has the chunk before
// (StepWait). The tokens behind the last chunk are computed by the first worker alone, when all
// chunks are done; it goes on as the sequence's only one.
//
// A chunk's steps are sent after those of all chunks before it, and a worker runs its steps in the
// order in which they were sent. So what a step waits for was sent before it, over all workers, and
// the oldest step that has not ended waits for nobody: no two ever wait for each other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scheduler/apply/events.h"
#include "scheduler/plan/elastic.h"

namespace baton {

/// Chunks of tokens [from, to), both whole blocks, in turns over workers that have room for so many
/// blocks of them. One whose room is used up is passed over. Empty: there is not enough room.
std::vector<SpreadChunk> deal(const std::vector<PoolShare>& lanes, std::uint32_t from,
                              std::uint32_t to, std::uint32_t chunk, std::uint32_t per_block);

/// The request's prompt may be computed by several workers at once, if `from` tokens are known.
bool may_spread(const State& state, const Request& request, std::uint32_t from);

struct SpreadPlan {
  std::vector<SpreadChunk> chunks;
  double predicted_us = 0;  // 0: nobody knows
};

/// What chunks take, by the costs of their workers (`cost_of` gives a worker's), of which each
/// begins when its worker is free and ends no earlier than a layer behind the chunk before.
double spread_us(const std::vector<SpreadChunk>& chunks, std::uint32_t layers,
                 const std::function<const PromptCost&(WorkerIndex)>& cost_of);

/// How the prompt is computed by `first` and others that are idle enough; `room` are the blocks
/// that `first` has for it. One more worker takes part if the prompt is predicted to take a tenth
/// less time with it; where nothing is known yet, all do. Fewer than two workers: no chunks.
SpreadPlan spread_out(const State& state, WorkerIndex first, const Request& request,
                      std::uint32_t from, std::uint32_t room, TimeNs now);

/// The sequence has been placed with its first chunk: takes the blocks of all the others.
void begin_spread(State& state, Sequence& sequence, SpreadPlan plan);

/// Who is to be waited for by rows of the chunk at hand; null: nobody.
const SpreadChunk* awaited_chunk(const Spread& spread);

/// What the worker's table lacks of the extents before the `end`-th one, and this one's own blocks.
void tell_extents(const State& state, const Sequence& sequence, WorkerIndex worker,
                  std::size_t& told, std::size_t end, StepPlan& plan);

/// `worker` has answered a step with a row of so many tokens.
void spread_row_done(State& state, Sequence& sequence, WorkerIndex worker, std::uint32_t tokens);

/// Its lanes' lists, and their counts, know it no more.
void leave_lanes(State& state, Sequence& sequence);

/// A worker's term is over: what it had to compute of others' prompts is computed again.
void lose_spreads(State& state, WorkerIndex worker);

}  // namespace baton
