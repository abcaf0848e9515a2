#include "scheduler/plan/spread.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/membership.h"
#include "scheduler/plan/admission_rules.h"
#include "scheduler/plan/gather.h"
#include "scheduler/plan/policy.h"

namespace baton {

namespace {

/// After so many waits in vain it is computed by one worker at a time.
constexpr std::uint32_t kMostSpreadFailures = 2;
/// Heartbeats come twice as often: who is silent for longer may be frozen, and all would wait.
constexpr TimeNs kSpreadSilence = 500 * kMillisecond;

/// Tokens that the chunks cover: whole blocks, and at least one token is left.
std::uint32_t spread_end(const Request& request, std::uint32_t per_block) {
  return (request.length() - 1) / per_block * per_block;
}

bool computes_a_prompt(const Worker& worker) {
  return !worker.compute.prefills.empty() || !worker.compute.spreads.empty();
}

/// It has no prompt under way, and answers.
bool is_idle(const State& state, const Worker& worker, TimeNs now) {
  return !computes_a_prompt(worker) && !worker.store.offer.progress_handle.empty() &&
         now - worker.peer.heard <= kSpreadSilence && elastic_room(state, worker, now) > 0;
}

/// Workers that one prompt may have. While there are other requests, one of those without a prompt
/// is left to them: short prompts need not wait for the end of a long one.
std::size_t most_lanes(const State& state) {
  const bool alone = state.deadlines.size() <= 1;  // those of open requests
  const auto free = std::count_if(state.workers.begin(), state.workers.end(), [](const Worker& w) {
    return shares_pools(w) && w.takes_work() && !computes_a_prompt(w);
  });
  const std::size_t left = alone ? 0 : 1;
  return std::clamp<std::size_t>(static_cast<std::size_t>(free) - left, 1,
                                 state.settings.elastic_degree);
}

/// `first`, then others that have nothing to do and can read each other's pools. Whoever decodes
/// would have each of its tokens late by a chunk, on every worker that takes part.
std::vector<PoolShare> idle_lanes(const State& state, WorkerIndex first, std::uint32_t room,
                                  TimeNs now) {
  std::vector<PoolShare> lanes = {{first, room}};
  const std::size_t most = most_lanes(state);
  for (WorkerIndex i = 0; i < state.workers.size() && lanes.size() < most; ++i) {
    const Worker& w = state.workers[i];
    if (i == first || w.compute.sequences != 0 || !is_idle(state, w, now)) continue;
    const bool reads = std::all_of(lanes.begin(), lanes.end(), [&](const PoolShare& lane) {
      return read_each_other(w, state.workers[lane.store]);
    });
    if (reads) lanes.push_back({i, elastic_room(state, w, now)});
  }
  return lanes;
}

}  // namespace

std::vector<SpreadChunk> deal(const std::vector<PoolShare>& lanes, std::uint32_t from,
                              std::uint32_t to, std::uint32_t chunk, std::uint32_t per_block) {
  std::vector<PoolShare> left = lanes;
  std::vector<SpreadChunk> chunks;
  const std::uint32_t whole = std::max(1U, chunk / per_block) * per_block;
  std::size_t turn = 0;
  while (from < to) {
    const std::uint32_t tokens = std::min(whole, to - from);
    const std::uint32_t blocks = tokens / per_block;
    std::size_t tried = 0;
    while (tried < left.size() && left[turn % left.size()].blocks < blocks) {
      ++turn;
      ++tried;
    }
    if (tried == left.size()) return {};
    PoolShare& lane = left[turn++ % left.size()];
    lane.blocks -= blocks;
    SpreadChunk& next = chunks.emplace_back();
    next.worker = lane.store;
    next.first = from;
    next.tokens = tokens;
    from += tokens;
  }
  // Where the first one has no room for the first chunk, it is no prompt that begins there.
  if (chunks.empty() || chunks.front().worker != lanes.front().store) return {};
  return chunks;
}

bool may_spread(const State& state, const Request& request, std::uint32_t from) {
  return may_span(state, request) && request.spread_failures < kMostSpreadFailures &&
         request.length() > from &&
         request.length() - from >= state.settings.elastic_prompt_tokens &&
         !wants_prompt_logprobs(request) && !is_suspect(state, request);
}

double spread_us(const std::vector<SpreadChunk>& chunks, std::uint32_t layers,
                 const std::function<const PromptCost&(WorkerIndex)>& cost_of) {
  std::map<WorkerIndex, double> free_at;
  double end = 0;  // of the chunk before
  for (const SpreadChunk& chunk : chunks) {
    const double us =
        cost_of(chunk.worker).of(chunk.tokens, attended_pairs(chunk.first, chunk.tokens));
    double& free = free_at[chunk.worker];
    end = std::max(free + us, end + us / std::max(1U, layers));
    free = end;
  }
  return end;
}

namespace {

/// A prompt takes one more worker for no less than this.
constexpr double kGain = 0.9;

/// Of a worker that has not computed prompts yet, what `first` takes is assumed.
const PromptCost& cost_of(const State& state, WorkerIndex worker, WorkerIndex first) {
  const PromptCost& own = state.workers[worker].compute.costs.prompts;
  return own.known() ? own : state.workers[first].compute.costs.prompts;
}

}  // namespace

SpreadPlan spread_out(const State& state, WorkerIndex first, const Request& request,
                      std::uint32_t from, std::uint32_t room, TimeNs now) {
  const Worker& w = state.workers[first];
  if (!may_spread(state, request, from) || !is_idle(state, w, now) ||
      request.length() + 1 > w.store.offer.max_context)
    return {};
  const std::uint32_t per_block = w.store.tokens_per_block();
  const std::uint32_t to = spread_end(request, per_block);
  const std::uint32_t behind = w.store.columns_for(request.length() + 1) - to / per_block;
  if (room <= behind) return {};
  const std::vector<PoolShare> lanes = idle_lanes(state, first, room - behind, now);
  const bool known = w.compute.costs.prompts.known();
  SpreadPlan best;
  bool found = false;
  for (std::size_t n = 1; n <= lanes.size(); ++n) {
    SpreadPlan plan;
    plan.chunks = deal({lanes.begin(), lanes.begin() + static_cast<std::ptrdiff_t>(n)}, from, to,
                       state.settings.prompt_chunk, per_block);
    if (plan.chunks.empty()) continue;
    if (known) {
      plan.predicted_us =
          spread_us(plan.chunks, w.store.offer.layers,
                    [&](WorkerIndex i) -> const PromptCost& { return cost_of(state, i, first); });
    }
    if (found && known && plan.predicted_us > kGain * best.predicted_us) break;
    best = std::move(plan);
    found = true;
  }
  const bool several = std::any_of(best.chunks.begin(), best.chunks.end(),
                                   [&](const SpreadChunk& chunk) { return chunk.worker != first; });
  return several ? best : SpreadPlan{};
}

void begin_spread(State& state, Sequence& sequence, SpreadPlan plan) {
  std::vector<SpreadChunk>& chunks = plan.chunks;
  sequence.spread = std::make_unique<Spread>();
  Spread& spread = *sequence.spread;
  spread.predicted_us = plan.predicted_us;
  spread.began = state.now;
  spread.lanes.push_back({sequence.worker});
  const auto take = [&](WorkerIndex worker, std::uint32_t first, std::uint32_t blocks) {
    Extent& extent = sequence.extents.emplace_back(Extent{worker, first, {}});
    // Nothing is saved for it: as in reserve().
    state.store(worker).pool.allocate(blocks, extent.blocks);
  };
  const std::uint32_t per_block = state.store(sequence.worker).tokens_per_block();
  for (std::size_t i = 1; i < chunks.size(); ++i)
    take(chunks[i].worker, chunks[i].first, chunks[i].tokens / per_block);
  const std::uint32_t end = chunks.back().first + chunks.back().tokens;
  take(sequence.worker, end,
       state.store(sequence.worker).columns_for(sequence.prefill_length + 1) - end / per_block);
  for (const SpreadChunk& chunk : chunks) {
    if (spread.lane_of(chunk.worker) != nullptr) continue;
    spread.lanes.push_back({chunk.worker});
    ++state.workers[chunk.worker].compute.expected;
  }
  for (const SpreadLane& lane : spread.lanes)
    state.workers[lane.worker].compute.spreads.push_back(sequence.id);
  ++state.counters.spreads;
  state.counters.spread_chunks += chunks.size();
  spread.chunks = std::move(chunks);
}

/// The chunk before: whoever has that one waited for all before it, layer by layer. One of the same
/// worker has ended when this one begins.
const SpreadChunk* awaited_chunk(const Spread& spread) {
  if (spread.next == 0) return nullptr;
  const SpreadChunk& before = spread.chunks[spread.next - 1];
  if (before.worker == spread.chunks[spread.next].worker || before.all_done()) return nullptr;
  return fault(Fault::chunk_not_awaited) ? nullptr : &before;
}

void tell_extents(const State& state, const Sequence& sequence, WorkerIndex worker,
                  std::size_t& told, std::size_t end, StepPlan& plan) {
  for (; told < end; ++told) {
    const Extent& extent = sequence.extents[told];
    if (extent.store != worker) {
      plan.elsewhere.push_back(
          {sequence.id, {state.store(extent.store).allocation(), extent.blocks}});
      continue;
    }
    for (const BlockId block : extent.blocks) {
      plan.grow_sequences.push_back(sequence.id);
      plan.grow_blocks.push_back(block);
    }
  }
}

namespace {

/// All chunks are computed: one worker goes on alone.
void end_spread(State& state, Sequence& sequence) {
  const Spread& spread = *sequence.spread;
  if (spread.predicted_us > 0) {
    state.counters.spread_predicted_us += static_cast<std::uint64_t>(spread.predicted_us);
    state.counters.spread_measured_us +=
        static_cast<std::uint64_t>((state.now - spread.began) / 1000);
  }
  const SpreadLane& own = spread.lanes.front();
  sequence.untold = sequence.extents.size() - own.told;
  leave_lanes(state, sequence);
  note_spanning(state, sequence);
  state.workers[sequence.worker].compute.prefills.push_back(sequence.id);
}

}  // namespace

void spread_row_done(State& state, Sequence& sequence, WorkerIndex worker, std::uint32_t tokens) {
  Spread& spread = *sequence.spread;
  --spread.lane_of(worker)->inflight;
  for (std::size_t i = spread.counted; i < spread.chunks.size(); ++i) {
    SpreadChunk& chunk = spread.chunks[i];
    if (chunk.worker != worker || chunk.all_done()) continue;
    chunk.done += tokens;  // results of one worker come in the order of its rows
    break;
  }
  const auto counts = [&](const SpreadChunk& chunk) {
    return chunk.all_done() ||
           (fault(Fault::chunk_counted_alone) && spread.chunks.back().all_done());
  };
  while (spread.counted < spread.chunks.size() && counts(spread.chunks[spread.counted]))
    ++spread.counted;
  if (spread.counted == spread.chunks.size()) {
    sequence.computed = spread.chunks.back().first + spread.chunks.back().tokens;
    return end_spread(state, sequence);
  }
  const SpreadChunk& chunk = spread.chunks[spread.counted];
  sequence.computed = chunk.first + chunk.done;
}

void leave_lanes(State& state, Sequence& sequence) {
  if (!sequence.spread) return;
  for (const SpreadLane& lane : sequence.spread->lanes) {
    Worker& w = state.workers[lane.worker];
    std::erase(w.compute.spreads, sequence.id);
    if (lane.worker == sequence.worker) continue;
    --w.compute.expected;
    // A worker out of term has forgotten it.
    if (lane.on_worker && w.ready()) w.compute.drops.push_back(sequence.id);
  }
  sequence.spread.reset();
}

void lose_spreads(State& state, WorkerIndex worker) {
  std::vector<SequenceId> lost;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.spread && sequence.spread->lane_of(worker) != nullptr) lost.push_back(sequence.id);
  });
  if (fault(Fault::lane_loss_ignored)) lost.clear();
  for (const SequenceId id : lost) lose_place(state, *state.sequences.find(id), worker);
}

}  // namespace baton
