// A sequence's life on one worker: blocks, decode set, drop.
#include "scheduler/apply/sequences.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/beams.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/requests.h"
#include "scheduler/plan/gather.h"
#include "scheduler/plan/spread.h"
#include "scheduler/plan/swap.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

namespace {

void erase_from(std::vector<SequenceId>& list, SequenceId id) {
  const auto it = std::find(list.begin(), list.end(), id);
  if (it != list.end()) list.erase(it);
}

}  // namespace

Sequence* place_sequence(State& state, Request& request, WorkerIndex worker, StartSpan span,
                         const BlockPool::Match& prefix, Writer writer) {
  Worker& w = state.workers[worker];
  if (blocks_to_take(w.store, span, prefix) > w.store.pool.available_blocks()) return nullptr;
  const bool may_save = writer == Writer::steps || fault(Fault::pulled_over_unsaved);
  const Saving saving = may_save ? saving_of(state, w) : Saving();
  Sequence& sequence = state.sequences.create();
  sequence.request = request.id;
  sequence.worker = worker;
  sequence.order = ++state.placements;
  sequence.extents.push_back({worker, 0, {}});
  start_table(w.store, sequence, span, prefix, saving);
  sequence.prefill_length = request.length();
  sequence.remembered = prefix.columns;
  sequence.prefix_node = prefix.node;
  sequence.width = w.decodes() ? request.sampling.num_beams : 1;
  w.compute.sequences += sequence.width;
  return &sequence;
}

namespace {

/// Whose books still count; else the pool is wholly fenced, and begins anew.
bool keeps_books(const State& state, StoreIndex store) {
  return state.workers[store].ready() || state.store(store).kept;
}

/// Workers of which steps in flight name it.
std::vector<WorkerIndex> readers_of(const Sequence& sequence) {
  std::vector<WorkerIndex> readers;
  if (fault(Fault::foreign_read_unfenced) || sequence.inflight == 0) return readers;
  if (!sequence.spread) return {sequence.worker};
  for (const SpreadLane& lane : sequence.spread->lanes) {
    if (lane.inflight != 0) readers.push_back(lane.worker);
  }
  return readers;
}

/// The last block first: of a chain in the cache, its end is forgotten before its beginning.
void release_blocks(State& state, const std::vector<WorkerIndex>& readers, Extent& extent) {
  if (keeps_books(state, extent.store)) {
    const Compute& writer = state.workers[extent.store].compute;
    BlockPool& pool = state.store(extent.store).pool;
    for (const WorkerIndex reader : readers) {
      if (reader == extent.store) continue;
      for (const BlockId block : extent.blocks) pool.pin_source(block);
      Compute& compute = state.workers[reader].compute;
      const StepId last = compute.sent - (fault(Fault::foreign_read_short) ? 1 : 0);
      compute.reads.push_back({last, extent.store, extent.blocks});
    }
    for (auto it = extent.blocks.rbegin(); it != extent.blocks.rend(); ++it) {
      if (*it != kNoBlock) pool.release(*it, writer.sent, writer.done);
    }
  }
  extent.blocks.clear();
}

}  // namespace

void release_extent(State& state, const Sequence& sequence, Extent& extent) {
  release_blocks(state, readers_of(sequence), extent);
}

void begin_decode(State& state, Request& request, Sequence& sequence) {
  Worker& w = state.workers[sequence.worker];
  // They were to be handed over, and nobody is left to take them: admission judges them again.
  if (request.beams && !can_hold(w, request, request.length() + 1)) return preempt(state, request);
  request.phase = Phase::decode;
  if (request.beams || sequence.on_worker) {
    request.times.decodes_on(sequence.worker, state.now, /*news=*/false);
  } else {
    request.times.enter(Part::decode_wait, state.now);
  }
  if (request.beams) {
    w.compute.beams.push_back(request.id);
    w.compute.sequences += request.sampling.num_beams - sequence.width;
    sequence.width = request.sampling.num_beams;
  } else if (!sequence.on_worker) {
    w.compute.adds.push_back(sequence.id);  // its worker's process is younger than its blocks
  } else if (is_suspect(state, request)) {
    w.compute.singles.push_back(sequence.id);
  } else {
    w.compute.joins.push_back(sequence.id);
  }
}

void release_places(State& state, Request& request) {
  if (request.beams) {
    if (const Sequence* source = state.sequences.find(request.source)) {
      std::erase(state.workers[source->worker].compute.beams, request.id);
    }
    for (const SequenceId line : request.beams->lines) {
      if (line != request.source) release_sequence(state, line);
    }
    request.beams->lines.clear();
    request.beams->search.reset();
    request.beams->due = false;
  }
  release_sequence(state, request.source);
  release_sequence(state, request.target);
  request.source = 0;
  request.target = 0;
}

void join_decode_set(State& state, Sequence& sequence) {
  Worker& w = state.workers[sequence.worker];
  sequence.decode_slot = static_cast<std::uint32_t>(w.compute.decode_set.size());
  w.compute.decode_set.push_back(sequence.id);
}

void leave_decode_set(State& state, Sequence& sequence) {
  if (sequence.decode_slot == kNobody) return;
  std::vector<SequenceId>& set = state.workers[sequence.worker].compute.decode_set;
  const SequenceId last = set.back();
  set[sequence.decode_slot] = last;
  state.sequences.find(last)->decode_slot = sequence.decode_slot;
  set.pop_back();
  sequence.decode_slot = kNobody;
}

void release_sequence(State& state, SequenceId id, bool keep) {
  Sequence* sequence = state.sequences.find(id);
  if (sequence == nullptr) return;
  if (!sequence->retiring) {
    Worker& w = state.workers[sequence->worker];
    leave_decode_set(state, *sequence);
    erase_from(w.compute.singles, id);
    erase_from(w.compute.prefills, id);
    erase_from(w.compute.adds, id);
    erase_from(w.compute.joins, id);
    // A worker out of term has forgotten its sequences.
    if (keeps_books(state, sequence->worker)) {
      remember_prefix(state, *sequence);
      if (sequence->on_worker) w.compute.drops.push_back(id);
    }
    give_up_gather(state, *sequence);
    const std::vector<WorkerIndex> readers = readers_of(*sequence);
    for (auto extent = sequence->extents.rbegin(); extent != sequence->extents.rend(); ++extent)
      release_blocks(state, readers, *extent);
    for (Extent& extent : sequence->ahead) {
      --state.workers[extent.store].compute.expected;
      release_blocks(state, readers, extent);
    }
    sequence->ahead.clear();
    leave_lanes(state, *sequence);
    sequence->on_worker = false;
    w.compute.sequences -= sequence->width;
  }
  if (keep && sequence->inflight > 0) {
    sequence->retiring = true;
  } else {
    state.sequences.erase(id);
  }
}

}  // namespace baton
