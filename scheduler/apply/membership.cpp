// Workers' terms and incarnations: who may be believed, whose memory may be reused.
#include "scheduler/apply/membership.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/plan/policy.h"
#include "scheduler/plan/spread.h"

namespace baton {

void lose_place(State& state, Sequence& sequence, WorkerIndex where) {
  Request* request = state.request_of(sequence);
  if (request == nullptr) {
    release_sequence(state, sequence.id);
    return;
  }
  request->times.lost_place(MoveCause::died, where, state.now, sequence.spans());
  if (sequence.is_target) {
    drop_target(state, *request);
    return;
  }
  Sequence* target = state.sequences.find(request->target);
  const bool pulls_go_on =
      request->phase == Phase::handoff && target != nullptr &&
      target->pulled == state.workers[target->worker].store.columns_for(target->prefill_length);
  if (pulls_go_on) {
    // Every block has been asked for: the mapping outlives its exporter, so nothing is lost.
    release_sequence(state, request->source);
    request->source = 0;
  } else {
    requeue(state, *request);
  }
}

void lose_extents(State& state, StoreIndex store, bool reserved_only) {
  std::vector<SequenceId> lost;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker == store || sequence.retiring || !sequence.spans()) return;
    const bool reserved = std::any_of(sequence.ahead.begin(), sequence.ahead.end(),
                                      [&](const Extent& extent) { return extent.store == store; });
    if (reserved || (!reserved_only && sequence.lies_in(store))) lost.push_back(sequence.id);
  });
  if (fault(Fault::extent_loss_ignored)) lost.clear();
  for (const SequenceId id : lost) lose_place(state, *state.sequences.find(id), store);
}

namespace {

/// Nothing outlives the term.
void lose_pool(State& state, WorkerIndex index) {
  Worker& w = state.workers[index];
  std::vector<SequenceId> here;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker == index) here.push_back(sequence.id);
  });
  for (const SequenceId id : here) {
    if (Sequence* sequence = state.sequences.find(id)) lose_place(state, *sequence, index);
  }
  lose_extents(state, index, /*reserved_only=*/false);
  std::vector<PullId> pulls;
  state.pulls.each([&](const OpenPull& pull) {
    if (pull.to_worker == index) pulls.push_back(pull.id);
  });
  for (const PullId id : pulls) settle_pull(state, id);
  for (const InFlightStep& step : w.compute.steps) w.store.pool.copied(step.copies);
  w.compute.sequences = 0;
  w.store.pool.reset();
}

}  // namespace

void end_term(State& state, WorkerIndex index, const Blame& blamed, Places places,
              const std::string& why, Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.ready()) return;
  w.peer.state = WorkerState::fenced;
  w.peer.fenced_term = 0;
  ++state.counters.terms_ended;
  out.warn(w.name() + ": term ended: " + why);
  if (blamed.later) note_unblamed(state, index);

  w.store.offer.leased && !w.store.faulted ? keep_pool(state, index, places)
                                           : lose_pool(state, index);
  lose_spreads(state, index);
  // What its steps read may be given to others: their results count no more.
  end_reads(state, index, std::numeric_limits<StepId>::max());
  w.compute.steps.clear();
  w.compute.decode_set.clear();
  w.compute.singles.clear();
  w.compute.prefills.clear();
  w.compute.spreads.clear();
  w.compute.adds.clear();
  w.compute.joins.clear();
  w.compute.drops.clear();
  w.compute.beams.clear();
  w.compute.short_of_blocks = false;
  w.compute.makes_way = false;
  w.compute.compiles_alone = false;
  w.compute.grammars.clear();
  w.peer.work.begin_term(w.peer.heard);
  w.store.sums.clear();
  blame(state, blamed.now, out);
}

void lose_worker(State& state, WorkerIndex index, bool blamed, const std::string& why, TimeNs now,
                 Outbox& out) {
  Worker& w = state.workers[index];
  if (w.peer.state == WorkerState::gone) return;
  if (w.ready()) {
    end_term(state, index, {blamed ? running_on(state, index) : Suspicions(), false},
             blamed ? Places::wait : Places::leave, why, out);
  }
  if (blamed) ++state.counters.worker_deaths;
  out.warn(w.name() + ": gone: " + why);
  if (blamed) blame_late(state, w, out);
  w.peer.unblamed.clear();
  w.peer.state = WorkerState::gone;
  w.peer.draining = false;
  w.peer.leaving = false;
  w.peer.leave_sent = false;
  w.peer.imports.clear();
  w.peer.unreachable.clear();
  w.peer.readable.clear();
  w.peer.work = OutstandingWork();
  if (w.store.kept && w.store.offer.leased) return;
  give_up_pool(state, index, now, out);
}

void doubt_pool(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  // A next process that has not said Hello has written nothing to the pool that waits for it.
  if (w.store.faulted || w.store.offer.incarnation != w.peer.identity.incarnation ||
      fault(Fault::fault_unheard))
    return;
  w.store.faulted = true;
  out.warn(w.name() + ": its process dies of a fault: its pool is given up");
  state.pulls.each(
      [&](OpenPull& pull) { pull.doubted = pull.doubted || pull.from_worker == index; });
  end_term(state, index, kBlameLater, Places::leave, "its process dies of a fault", out);
  if (w.store.kept) give_up_pool(state, index, now, out);
}

void give_up_pool(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  requeue_parked(state, index);
  lose_extents(state, index, /*reserved_only=*/false);
  if (!fault(Fault::reads_kept)) forget_reads(state, index);
  w.store.kept = false;
  const AllocationId allocation = w.store.allocation();
  state.pulls.each([&](OpenPull& pull) {
    if (pull.from_worker == index) pull.from_worker = kNobody;
  });
  w.store.pool = BlockPool();
  if (w.store.log) w.store.log->cleared();
  if (allocation == 0) return;
  for (Worker& importer : state.workers) {
    if (importer.peer.state == WorkerState::gone || importer.peer.imports.count(allocation) == 0)
      continue;
    if (!importer.peer.work.has(Work::close, allocation))
      importer.peer.work.add(Work::close, 0, allocation, now);
    importer.peer.closes_repeated = now;
    out.to_workers.emplace_back(importer.peer.link, Close{allocation});
  }
}

bool forget_link(State& state, LinkId link) {
  if (const auto it = state.worker_links.find(link); it != state.worker_links.end()) {
    const Peer& peer = state.workers[it->second].peer;
    if (peer.link == link && peer.state != WorkerState::gone) return false;
    state.worker_links.erase(it);
  }
  if (const auto it = state.frontend_links.find(link); it != state.frontend_links.end()) {
    const Frontend& entry = state.frontends[it->second];
    if (entry.link == link && entry.alive) return false;
    state.frontend_links.erase(it);
  }
  return true;
}

std::uint32_t max_context(const State& state) {
  return std::max(largest_context(state), elastic_context(state));
}

std::uint32_t promised_context(const State& state) {
  return std::max(max_context(state), state.proven_context);
}

std::uint32_t largest_context(const State& state) {
  std::uint32_t decoders = 0;
  std::uint32_t all = 0;
  for (const Worker& w : state.workers) {
    all = std::max(all, w.store.last_context);
    if (w.decodes()) decoders = std::max(decoders, w.store.last_context);
  }
  return decoders != 0 ? decoders : all;
}

bool any_decoder(const State& state) {
  return std::any_of(state.workers.begin(), state.workers.end(),
                     [](const Worker& w) { return w.takes_work() && w.decodes(); });
}

}  // namespace baton
