#include "scheduler/apply/kept_pool.h"

#include <limits>
#include <string>
#include <vector>

#include "ipc/fault_points.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/requests.h"

namespace baton {

namespace {

/// Whatever may be written by what the worker was sent and has not answered.
std::vector<SlotWrite> unanswered_writes(const State& state, WorkerIndex index) {
  std::vector<SlotWrite> writes;
  for (const InFlightStep& step : state.workers[index].compute.steps)
    writes.insert(writes.end(), step.writes.begin(), step.writes.end());
  state.pulls.each([&](const OpenPull& pull) {
    if (pull.to_worker != index) return;
    for (const BlockId block : pull.to) writes.push_back({block, 0});
  });
  return writes;
}

bool may_park(const Request& request, const Sequence& sequence, std::uint32_t trusted) {
  if (sequence.retiring || sequence.is_target || request.beams || sequence.id != request.source)
    return false;
  const bool runs = request.phase == Phase::prefill || request.phase == Phase::handoff ||
                    request.phase == Phase::decode;
  return runs && trusted != 0 && trusted == sequence.computed;
}

void park(Request& request, Sequence& sequence) {
  // A prompt whose last chunk is under way counts as decoding already.
  if (request.phase == Phase::decode && sequence.computed < sequence.prefill_length)
    request.phase = Phase::prefill;
  if (!fault(Fault::trusted_too_early)) sequence.scheduled = sequence.computed;
  sequence.computed = sequence.scheduled;
  sequence.inflight = 0;
  sequence.sampling = 0;
  sequence.on_worker = false;
  sequence.stays = false;
  sequence.parked = true;
}

}  // namespace

void keep_pool(State& state, WorkerIndex index, Places places) {
  Worker& w = state.workers[index];
  const std::vector<SlotWrite> writes = unanswered_writes(state, index);
  const Trust trust(w.store.pool.total() + w.store.pool.host_total(), w.store.tokens_per_block(),
                    writes);
  w.store.kept = true;
  w.store.kept_since = 0;
  w.store.pool.distrust(trust);
  w.compute.done = w.compute.sent;  // no step fences anything any more
  w.compute.decode_set.clear();  // the other lists of the planner name nobody by his place in them
  const bool wait = places == Places::wait && state.settings.kept_wait > 0;
  std::vector<SequenceId> lost;
  state.sequences.each([&](Sequence& sequence) {
    if (sequence.worker != index) return;
    sequence.decode_slot = kNobody;
    if (sequence.spans()) {  // a next process would have to map what holds its first tokens
      lost.push_back(sequence.id);
      return;
    }
    const std::uint32_t trusted =
        trust.tokens(sequence.tail().blocks, sequence.computed, w.store.shape.groups.count);
    Request* request = state.request_of(sequence);
    if (wait && request != nullptr && may_park(*request, sequence, trusted)) {
      park(*request, sequence);
      request->times.lost_place(MoveCause::died, index, state.now);
      request->times.enter(Part::away, state.now);
    } else {
      sequence.computed = trusted;  // so much of it is cached now
      lost.push_back(sequence.id);
    }
  });
  for (const SequenceId id : lost) {
    if (Sequence* sequence = state.sequences.find(id)) lose_place(state, *sequence, index);
  }
  if (!fault(Fault::reserved_kept))
    lose_extents(state, index, /*reserved_only=*/true);  // what others read here stays
  std::vector<PullId> pulls;
  state.pulls.each([&](const OpenPull& pull) {
    if (pull.to_worker == index) pulls.push_back(pull.id);
  });
  for (const PullId id : pulls) settle_pull(state, id);
  for (const InFlightStep& step : w.compute.steps) w.store.pool.copied(step.copies);
  w.store.pool.retire(std::numeric_limits<StepId>::max());
}

void resume_pool(State& state, WorkerIndex index, Outbox& out) {
  Worker& w = state.workers[index];
  w.store.kept = false;
  std::uint32_t resumed = 0;
  state.sequences.each([&](Sequence& sequence) {
    if (sequence.worker != index || !sequence.parked) return;
    sequence.parked = false;
    ++resumed;
    Request& request = *state.request_of(sequence);
    switch (request.phase) {
      case Phase::prefill:
        request.times.enter(computing(request), state.now);
        w.compute.prefills.push_back(sequence.id);
        break;
      case Phase::decode:
        request.times.enter(Part::decode_wait, state.now);
        w.compute.adds.push_back(sequence.id);
        break;
      default:
        request.times.enter(request.target != 0 ? Part::handoff : Part::decode_wait, state.now);
        break;  // a hand-off reads its blocks, which takes nothing of this worker
    }
  });
  state.counters.resumed += resumed;
  out.info(w.name() + ": goes on with its pool: " + std::to_string(resumed) + " sequences, " +
           std::to_string(w.store.pool.cached_blocks() + w.store.pool.host_cached_blocks()) +
           " cached blocks");
}

void requeue_parked(State& state, WorkerIndex index) {
  std::vector<SequenceId> parked;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker == index && sequence.parked) parked.push_back(sequence.id);
  });
  for (const SequenceId id : parked) lose_place(state, *state.sequences.find(id), index);
}

void judge_kept_pool(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.store.kept) return;
  if (w.store.kept_since == 0) w.store.kept_since = now;
  if (now - w.store.kept_since < state.settings.kept_wait) return;
  if (w.peer.state == WorkerState::gone) {
    out.warn(w.name() + ": does not come back: its pool is given up");
    return give_up_pool(state, index, now, out);
  }
  requeue_parked(state, index);
}

}  // namespace baton
