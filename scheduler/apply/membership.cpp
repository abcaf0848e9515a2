// Workers' terms and incarnations: who may be believed, whose memory may be reused.
#include <algorithm>
#include <utility>

#include "scheduler/apply/lifecycle.h"
#include "scheduler/plan/policy.h"

namespace baton {

namespace {

bool end_after_deaths(State& state, Request& request, Outbox& out) {
  if (request.deaths < state.settings.max_deaths) return false;
  end_request(state, request, FinishReason::error, ErrorCode::worker_crashes,
              std::to_string(request.deaths) + " workers in a row died while they ran this request",
              out);
  return true;
}

/// Why its worker may have died: it is in a step there, or its grammar was being compiled. That would end a suspect,
/// so it is one's fault only if no step can be the cause.
bool may_be_the_cause(const State& state, const Sequence& sequence, const Request& request) {
  if (sequence.inflight > 0) return true;
  const Worker& w = state.workers[sequence.worker];
  if (sequence.is_target || !grammar_asked(w, request)) return false;
  return w.steps.empty() || !is_suspect(state, request);
}

/// Who may be the cause if the process turns out to have died.
void note_unblamed(State& state, WorkerIndex index) {
  std::vector<Unblamed>& noted = state.workers[index].unblamed;
  state.sequences.each([&](const Sequence& sequence) {
    const Request* request = state.request_of(sequence);
    if (sequence.worker != index || request == nullptr) return;
    if (!may_be_the_cause(state, sequence, *request)) return;
    const bool known = std::any_of(noted.begin(), noted.end(), [&](const Unblamed& other) {
      return other.request == request->id;
    });
    if (!known) noted.push_back({request->id, request->furthest(), is_suspect(state, *request)});
  });
}

/// The process of a term that nobody was blamed for had died: a message to a dead worker fails
/// before anything else shows its death, and without this whoever kills workers would do so for
/// ever.
void blame_late(State& state, Worker& w, Outbox& out) {
  for (const Unblamed& noted : std::exchange(w.unblamed, {})) {
    Request* request = state.requests.find(noted.request);
    if (request == nullptr || request->phase == Phase::ended) continue;
    if (request->furthest() != noted.furthest) continue;  // it got on elsewhere
    if (noted.suspect || state.settings.max_deaths == 1) {
      ++request->deaths;
      end_after_deaths(state, *request, out);
      continue;
    }
    ++request->late_deaths;
    if (request->phase == Phase::waiting) count_late_deaths(state, *request);
  }
}

/// What the loss of its place on a worker means for one request.
void lose_place(State& state, Sequence& sequence, bool blame, Outbox& out) {
  Request* request = state.request_of(sequence);
  if (request == nullptr) {
    release_sequence(state, sequence.id);
    return;
  }
  if (sequence.is_target) {
    drop_target(state, *request);
    return;
  }
  if (blame && may_be_the_cause(state, sequence, *request)) ++request->deaths;
  if (end_after_deaths(state, *request, out)) return;
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

void end_term(State& state, WorkerIndex index, bool blame, const std::string& why, TimeNs now,
              Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.ready()) return;
  w.state = WorkerState::fenced;
  w.fenced_term = 0;
  w.fenced_at = now;
  ++state.counters.terms_ended;
  out.warn(w.identity.name + ": term ended: " + why);
  if (!blame) note_unblamed(state, index);

  std::vector<SequenceId> here;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker == index) here.push_back(sequence.id);
  });
  for (const SequenceId id : here) {
    if (Sequence* sequence = state.sequences.find(id)) lose_place(state, *sequence, blame, out);
  }
  std::vector<TransferId> pulls;
  state.transfers.each([&](const Transfer& transfer) {
    if (transfer.to_worker == index) pulls.push_back(transfer.id);
  });
  for (const TransferId id : pulls) settle_transfer(state, id);

  for (const InFlightStep& step : w.steps) w.pool.copied(step.copies);
  w.steps.clear();
  w.decode_set.clear();
  w.prefills.clear();
  w.adds.clear();
  w.joins.clear();
  w.drops.clear();
  w.beams.clear();
  w.sequences = 0;
  w.short_of_blocks = false;
  w.makes_way = false;
  w.sums.clear();
  w.open_pulls = 0;
  w.pool.reset();
}

void lose_worker(State& state, WorkerIndex index, bool blame, const std::string& why, TimeNs now,
                 Outbox& out) {
  Worker& w = state.workers[index];
  if (w.state == WorkerState::gone) return;
  end_term(state, index, blame, why, now, out);
  out.warn(w.identity.name + ": gone: " + why);
  if (blame) blame_late(state, w, out);
  w.unblamed.clear();
  w.state = WorkerState::gone;
  w.draining = false;
  w.leaving = false;
  w.leave_sent = false;
  w.imports.clear();
  w.unreachable.clear();
  w.closing.clear();
  const AllocationId allocation = w.hello.allocation;
  state.transfers.each([&](Transfer& transfer) {
    if (transfer.from_worker == index) transfer.from_worker = kNobody;
  });
  w.pool = BlockPool();
  if (allocation == 0) return;
  for (Worker& importer : state.workers) {
    if (importer.state == WorkerState::gone || importer.imports.count(allocation) == 0) continue;
    if (!importer.outstanding()) importer.progress = now;
    importer.closing.insert(allocation);
    importer.closes_repeated = now;
    out.to_workers.emplace_back(importer.link, Close{allocation});
  }
}

std::uint32_t max_context(const State& state) {
  std::uint32_t context = 0;
  for (const Worker& w : state.workers) {
    if (!w.ready()) continue;
    const std::uint64_t pool = std::uint64_t{w.hello.blocks} * w.hello.tokens_per_block;
    const auto fits =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(pool, w.hello.max_context));
    context = context == 0 ? fits : std::min(context, fits);
  }
  return context;
}

bool any_decoder(const State& state) {
  return std::any_of(state.workers.begin(), state.workers.end(),
                     [](const Worker& w) { return w.takes_work() && w.decodes(); });
}

}  // namespace baton
