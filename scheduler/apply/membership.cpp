// Workers' terms and incarnations: who may be believed, whose memory may be reused.
#include <algorithm>
#include <utility>

#include "scheduler/apply/lifecycle.h"
#include "scheduler/plan/policy.h"

namespace baton {

namespace {

/// What the loss of its place on a worker means for one request.
void lose_place(State& state, Sequence& sequence) {
  Request* request = state.request_of(sequence);
  if (request == nullptr) {
    release_sequence(state, sequence.id);
    return;
  }
  if (sequence.is_target) {
    drop_target(state, *request);
    return;
  }
  Sequence* target = state.sequences.find(request->target);
  const bool pulls_go_on =
      request->phase == Phase::handoff && target != nullptr &&
      target->pulled == state.workers[target->worker].blocks_for(target->prefill_length);
  if (pulls_go_on) {
    // Every block has been asked for: the mapping outlives its exporter, so nothing is lost.
    release_sequence(state, request->source);
    request->source = 0;
  } else {
    requeue(state, *request);
  }
}

}  // namespace

void end_term(State& state, WorkerIndex index, const Blame& blamed, const std::string& why, Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.ready()) return;
  w.state = WorkerState::fenced;
  w.fenced_term = 0;
  ++state.counters.terms_ended;
  out.warn(w.identity.name + ": term ended: " + why);
  if (blamed.later) note_unblamed(state, index);

  std::vector<SequenceId> here;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker == index) here.push_back(sequence.id);
  });
  for (const SequenceId id : here) {
    if (Sequence* sequence = state.sequences.find(id)) lose_place(state, *sequence);
  }
  std::vector<TransferId> pulls;
  state.transfers.each([&](const Transfer& transfer) {
    if (transfer.to_worker == index) pulls.push_back(transfer.id);
  });
  for (const TransferId id : pulls) settle_transfer(state, id);

  for (const InFlightStep& step : w.steps) w.pool.copied(step.copies);
  w.steps.clear();
  w.decode_set.clear();
  w.singles.clear();
  w.prefills.clear();
  w.adds.clear();
  w.joins.clear();
  w.drops.clear();
  w.beams.clear();
  w.sequences = 0;
  w.short_of_blocks = false;
  w.makes_way = false;
  w.compiles_alone = false;
  w.grammars.clear();
  w.work.begin_term(w.heard);
  w.sums.clear();
  w.pool.reset();
  blame(state, blamed.now, out);
}

void lose_worker(State& state, WorkerIndex index, bool blamed, const std::string& why, TimeNs now,
                 Outbox& out) {
  Worker& w = state.workers[index];
  if (w.state == WorkerState::gone) return;
  if (w.ready()) end_term(state, index, {blamed ? running_on(state, index) : Suspicions(), false}, why, out);
  out.warn(w.identity.name + ": gone: " + why);
  if (blamed) blame_late(state, w, out);
  w.unblamed.clear();
  w.state = WorkerState::gone;
  w.draining = false;
  w.leaving = false;
  w.leave_sent = false;
  w.imports.clear();
  w.unreachable.clear();
  w.work = OutstandingWork();
  const AllocationId allocation = w.hello.allocation;
  state.transfers.each([&](Transfer& transfer) {
    if (transfer.from_worker == index) transfer.from_worker = kNobody;
  });
  w.pool = BlockPool();
  if (allocation == 0) return;
  for (Worker& importer : state.workers) {
    if (importer.state == WorkerState::gone || importer.imports.count(allocation) == 0) continue;
    if (!importer.work.has(Work::close, allocation)) importer.work.add(Work::close, 0, allocation, now);
    importer.closes_repeated = now;
    out.to_workers.emplace_back(importer.link, Close{allocation});
  }
}

std::uint32_t max_context(const State& state) {
  std::uint32_t decoders = 0;
  std::uint32_t all = 0;
  for (const Worker& w : state.workers) {
    all = std::max(all, w.last_context);
    if (w.decodes()) decoders = std::max(decoders, w.last_context);
  }
  return decoders != 0 ? decoders : all;
}

bool any_decoder(const State& state) {
  return std::any_of(state.workers.begin(), state.workers.end(),
                     [](const Worker& w) { return w.takes_work() && w.decodes(); });
}

}  // namespace baton
