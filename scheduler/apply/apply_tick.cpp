// What the passing of time means: deadlines, silence, missing progress, drains.
#include <algorithm>

#include "scheduler/apply/apply_handlers.h"
#include "scheduler/apply/lifecycle.h"

namespace baton {

namespace {

/// A worker that answers heartbeats may work this long on one step, pull or close. (A frozen one is
/// silent: that is judged by worker_timeout.)
constexpr TimeNs kLongestStep = 60 * kSecond;

void expire_deadlines(State& state, TimeNs now, Outbox& out) {
  while (!state.deadlines.empty() && state.deadlines.begin()->first <= now) {
    Request* request = state.requests.find(state.deadlines.begin()->second);
    end_request(state, *request, FinishReason::error, ErrorCode::deadline_exceeded,
                "the request's timeout_s has passed", out);
  }
}

/// A front end that has lost a terminal asks for it; one whose acknowledgement was lost does not know
/// that anything is missing. So what is not acknowledged is sent again.
void repeat_terminals(State& state, TimeNs now, Outbox& out) {
  if (now - state.terminals_repeated < kSecond) return;
  state.terminals_repeated = now;
  state.requests.each([&](Request& request) {
    if (!request.terminal_sent) return;
    if (request.terminal_due) send_terminal(state, request, out);
    request.terminal_due = true;
  });
}

void judge_progress(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  const TimeNs limit = state.settings.worker_timeout;
  const TimeNs silent = now - w.heard;
  if (!w.outstanding()) {
    w.progress = now;
    // Frozen, or dead where nobody sees its pid: as long as it counts as alive, requests wait for it.
    if (w.ready() && silent > limit) {
      end_term(state, index, /*blame=*/false, "idle, and silent", now, out);
    }
    return;
  }
  if (!w.ready() || now - w.progress <= limit) return;
  if (silent > limit) {
    end_term(state, index, /*blame=*/true, "no progress, and silent", now, out);
  } else if (silent <= limit / 2) {
    // It lives. If it has every plan, it may only be slow: a long step is no death until it is absurd.
    const bool has_plans = w.heartbeat.term == w.term && w.heartbeat.plans_received >= w.sent;
    if (!has_plans) {
      end_term(state, index, /*blame=*/false, "a plan was lost", now, out);
    } else if (now - w.progress > kLongestStep) {
      end_term(state, index, /*blame=*/true, "no progress", now, out);
    }
  }
}

/// Close or its answer may have been lost; to close twice does no harm.
void repeat_closes(Worker& w, TimeNs now, Outbox& out) {
  if (w.closing.empty() || w.state == WorkerState::gone || now - w.closes_repeated < kSecond) return;
  w.closes_repeated = now;
  for (const AllocationId allocation : w.closing) {
    out.to_workers.emplace_back(w.link, Close{allocation});
  }
}

/// A Pull that never arrived: the worker gets on with its steps, but does not have it.
bool has_lost_pull(const State& state, WorkerIndex index, TimeNs now) {
  const Worker& w = state.workers[index];
  if (w.open_pulls == 0 || w.heartbeat.term != w.term ||
      w.heartbeat.pulls_received >= w.pulls_sent) {
    return false;
  }
  bool lost = false;
  state.transfers.each([&](const Transfer& transfer) {
    lost = lost ||
           (transfer.to_worker == index && now - transfer.sent > state.settings.worker_timeout);
  });
  return lost;
}

bool importers_closed(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  const AllocationId allocation = state.workers[index].hello.allocation;
  bool closed = true;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    Worker& importer = state.workers[i];
    if (i == index || importer.state == WorkerState::gone) continue;
    if (importer.imports.count(allocation) == 0) continue;
    closed = false;
    if (importer.closing.insert(allocation).second) {
      importer.progress = importer.closes_repeated = now;
      out.to_workers.emplace_back(importer.link, Close{allocation});
    }
  }
  return closed;
}

void drain(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  if (!w.draining || w.state == WorkerState::gone) return;
  if (now - w.drain_since > state.settings.drain && w.sequences > 0 && w.ready()) {
    std::vector<std::uint64_t> requests;
    state.sequences.each([&](const Sequence& sequence) {
      if (sequence.worker != index || sequence.retiring || sequence.width == 0) return;
      requests.push_back(sequence.request);
    });
    for (const std::uint64_t id : requests) {
      Request* request = state.requests.find(id);
      if (request == nullptr) continue;
      const Sequence* target = state.sequences.find(request->target);
      if (target != nullptr && target->worker == index) {
        drop_target(state, *request);
      } else {
        preempt(state, *request);
      }
    }
  }
  if (!w.leaving || w.leave_sent || w.sequences != 0 || !w.steps.empty() || w.open_pulls != 0) {
    return;
  }
  bool read_by_others = false;
  state.transfers.each([&](const Transfer& transfer) {
    read_by_others = read_by_others || transfer.from_worker == index;
  });
  if (read_by_others || !importers_closed(state, index, now, out)) return;
  w.leave_sent = true;
  out.to_workers.emplace_back(w.link, Leave{w.identity.incarnation});
}

}  // namespace

void apply_tick(State& state, TimeNs gap, TimeNs now, Outbox& out) {
  for (Worker& w : state.workers) {
    w.progress = std::min(now, w.progress + gap);
    w.heard = std::min(now, w.heard + gap);
  }
  for (Frontend& frontend : state.frontends) frontend.heard = std::min(now, frontend.heard + gap);
  expire_deadlines(state, now, out);
  repeat_terminals(state, now, out);
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    try_admit_worker(state, i, now, out);
    judge_progress(state, i, now, out);
    repeat_closes(state.workers[i], now, out);
    probe_again(state, i, now, out);
    if (state.workers[i].ready() && has_lost_pull(state, i, now)) {
      end_term(state, i, /*blame=*/false, "a pull was lost", now, out);
    }
    drain(state, i, now, out);
  }
  for (FrontendIndex i = 0; i < state.frontends.size(); ++i) {
    const Frontend& frontend = state.frontends[i];
    if (frontend.alive && now - frontend.heard > state.settings.frontend_timeout) {
      lose_frontend(state, i, "silent for too long", out);
    }
  }
}

}  // namespace baton
