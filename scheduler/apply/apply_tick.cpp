// What the passing of time means: deadlines, silence, missing progress, drains.
#include <algorithm>

#include "scheduler/apply/apply_handlers.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/roles.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/elastic.h"

namespace baton {

namespace {

void expire_deadlines(State& state, TimeNs now, Outbox& out) {
  while (!state.deadlines.empty() && state.deadlines.begin()->first <= now) {
    Request* request = state.requests.find(state.deadlines.begin()->second);
    end_request(state, *request, FinishReason::error, ErrorCode::deadline_exceeded,
                "the request's timeout_s has passed", out);
  }
}

/// A front end that has lost a terminal asks for it; one whose acknowledgement was lost does not
/// know that anything is missing. So what is not acknowledged is sent again.
void repeat_terminals(State& state, TimeNs now, Outbox& out) {
  if (now - state.terminals_repeated < kSecond) return;
  state.terminals_repeated = now;
  state.requests.each([&](Request& request) {
    if (!request.terminal_sent) return;
    if (request.terminal_due) send_terminal(state, request, out);
    request.terminal_due = true;
  });
}

/// A worker that fell silent got nothing to work on later than this after it was last heard: it
/// would have sent a heartbeat meanwhile.
constexpr TimeNs kTwoHeartbeats = 500 * kMillisecond;

/// Requests that only its pool could hold wait no longer for a process that does not come back, or
/// that died unseen while it loaded: one that lives sends heartbeats.
void forget_context(Worker& w, TimeNs now) {
  if (!w.ready() && now - w.peer.heard > kWaitForPools) w.store.last_context = 0;
}

void judge_worker(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.ready()) return;
  const Verdict verdict = w.peer.work.judge(w.peer.heard, now, state.settings.worker_timeout);
  switch (verdict.fault) {
    case Verdict::Fault::none:
      return;
    case Verdict::Fault::lost:
      return end_term(state, index, kBlameLater, Places::wait, verdict.why(), out);
    case Verdict::Fault::silent:
      // Frozen, or dead where nobody sees its pid: as long as it counts as alive, requests wait for
      // it.
      return end_term(state, index,
                      {running_on(state, index, w.peer.heard + kTwoHeartbeats), false},
                      Places::leave, verdict.why(), out);
    case Verdict::Fault::hung: {
      const Term term = w.peer.term;
      end_term(state, index, {owners_of(state, index, verdict.record), false}, Places::leave,
               verdict.why(), out);
      out.to_workers.emplace_back(w.peer.link, Fenced{state.epoch, term, /*hung=*/true});
    }
  }
}

/// Close or its answer may have been lost; to close twice does no harm.
void repeat_closes(Worker& w, TimeNs now, Outbox& out) {
  if (w.peer.work.open(Work::close) == 0 || w.peer.state == WorkerState::gone ||
      now - w.peer.closes_repeated < kSecond)
    return;
  w.peer.closes_repeated = now;
  for (const auto& [number, record] : w.peer.work.of(Work::close)) {
    out.to_workers.emplace_back(w.peer.link, Close{record.key});
  }
}

/// What a worker has mapped under an earlier scheduler, of a pool whose owner has not come: that of
/// a kept pool ends with nobody's process.
void close_orphans(State& state, Worker& w, TimeNs now, Outbox& out) {
  if (w.peer.state == WorkerState::gone || now - state.started < state.settings.close_timeout)
    return;
  for (const AllocationId allocation : w.peer.imports) {
    const bool offered =
        std::any_of(state.workers.begin(), state.workers.end(),
                    [&](const Worker& other) { return other.store.allocation() == allocation; });
    if (offered || w.peer.work.has(Work::close, allocation)) continue;
    w.peer.work.add(Work::close, 0, allocation, now);
    w.peer.closes_repeated = now;
    out.to_workers.emplace_back(w.peer.link, Close{allocation});
  }
}

bool importers_closed(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  const AllocationId allocation = state.workers[index].store.allocation();
  bool closed = true;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    Worker& importer = state.workers[i];
    if (i == index || importer.peer.state == WorkerState::gone) continue;
    if (importer.peer.imports.count(allocation) == 0) continue;
    closed = false;
    if (!importer.peer.work.has(Work::close, allocation)) {
      importer.peer.work.add(Work::close, 0, allocation, now);
      importer.peer.closes_repeated = now;
      out.to_workers.emplace_back(importer.peer.link, Close{allocation});
    }
  }
  return closed;
}

void drain(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.peer.draining || w.peer.state == WorkerState::gone) return;
  const bool holds_others = holds_for_others(state, index);
  const bool holds = w.compute.sequences > 0 || holds_others;
  if (now - w.peer.drain_since > state.settings.drain && holds && w.ready()) {
    std::vector<std::uint64_t> requests;
    state.sequences.each([&](const Sequence& sequence) {
      if (!sequence.lies_in(index) || sequence.retiring || sequence.width == 0) return;
      requests.push_back(sequence.request);
    });
    for (const std::uint64_t id : requests) {
      Request* request = state.requests.find(id);
      if (request == nullptr) continue;
      const Sequence* target = state.sequences.find(request->target);
      if (target != nullptr && target->worker == index) {
        drop_target(state, *request);
      } else {
        preempt(state, *request, MoveCause::drained);
      }
    }
  }
  if (!w.peer.leaving || w.peer.leave_sent || w.compute.sequences != 0 ||
      !w.compute.steps.empty() || w.peer.work.open(Work::pull) != 0) {
    return;
  }
  bool read_by_others = false;
  state.pulls.each(
      [&](const OpenPull& pull) { read_by_others = read_by_others || pull.from_worker == index; });
  if (read_by_others || holds_others || !importers_closed(state, index, now, out)) return;
  w.peer.leave_sent = true;
  out.to_workers.emplace_back(w.peer.link, Leave{w.peer.identity.incarnation});
}

}  // namespace

void apply_tick(State& state, TimeNs gap, TimeNs now, Outbox& out) {
  for (Worker& w : state.workers) {
    w.peer.work.forgive(gap, now);
    w.peer.heard = std::min(now, w.peer.heard + gap);
  }
  for (Frontend& frontend : state.frontends) {
    frontend.heard = std::min(now, frontend.heard + gap);
    if (frontend.away != 0) frontend.away = std::min(now, frontend.away + gap);
  }
  expire_deadlines(state, now, out);
  repeat_terminals(state, now, out);
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    try_admit_worker(state, i, now, out);
    judge_worker(state, i, now, out);
    judge_kept_pool(state, i, now, out);
    forget_context(state.workers[i], now);
    close_orphans(state, state.workers[i], now, out);
    repeat_closes(state.workers[i], now, out);
    repeat_grammar(state.workers[i], now, out);
    probe_again(state, i, now, out);
    drain(state, i, now, out);
  }
  if (state.proven_context <= max_context(state)) {
    state.context_lost = 0;
  } else if (state.context_lost == 0) {
    state.context_lost = now;
  }
  turn_roles(state, now, out);
  for (FrontendIndex i = 0; i < state.frontends.size(); ++i) {
    const Frontend& frontend = state.frontends[i];
    if (!frontend.alive) continue;
    if (frontend.away != 0) {
      if (now - frontend.away < state.settings.successor_wait) continue;
      lose_frontend(state, i, "no successor has come", out);
    } else if (now - frontend.heard > state.settings.frontend_timeout) {
      lose_frontend(state, i, "silent for too long", out);
    }
  }
}

}  // namespace baton
