// A sequence's life on one worker: blocks, decode set, drop.
#include <algorithm>

#include "scheduler/lifecycle.h"

namespace baton {

namespace {

void erase_from(std::vector<SequenceId>& list, SequenceId id) {
  const auto it = std::find(list.begin(), list.end(), id);
  if (it != list.end()) list.erase(it);
}

}  // namespace

Sequence* place_sequence(State& state, Request& request, WorkerIndex worker, std::uint32_t blocks) {
  Worker& w = state.workers[worker];
  std::vector<BlockId> taken;
  taken.reserve(blocks + 8);
  if (!w.pool.allocate(blocks, taken)) return nullptr;
  Sequence& sequence = state.sequences.create();
  sequence.request = request.id;
  sequence.worker = worker;
  sequence.blocks = std::move(taken);
  sequence.prefill_length = request.length();
  ++w.sequences;
  return &sequence;
}

void join_decode_set(State& state, Sequence& sequence) {
  Worker& w = state.workers[sequence.worker];
  sequence.decode_slot = static_cast<std::uint32_t>(w.decode_set.size());
  w.decode_set.push_back(sequence.id);
}

void leave_decode_set(State& state, Sequence& sequence) {
  if (sequence.decode_slot == kNobody) return;
  std::vector<SequenceId>& set = state.workers[sequence.worker].decode_set;
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
    erase_from(w.prefills, id);
    erase_from(w.adds, id);
    erase_from(w.joins, id);
    // A worker out of term has forgotten its sequences, and its pool is wholly fenced.
    if (w.ready()) {
      for (const BlockId block : sequence->blocks) w.pool.release(block, w.sent, w.done);
      if (sequence->on_worker) w.drops.push_back(id);
    }
    sequence->blocks.clear();
    sequence->on_worker = false;
    --w.sequences;
  }
  if (keep && sequence->inflight > 0) {
    sequence->retiring = true;
  } else {
    state.sequences.erase(id);
  }
}

}  // namespace baton
