#include "scheduler/apply/apply_event.h"

#include "scheduler/apply/apply_handlers.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/roles.h"
#include "scheduler/plan/elastic.h"

namespace baton {

namespace {

void peer_gone(State& state, LinkId link, TimeNs now, Outbox& out) {
  if (const auto it = state.worker_links.find(link); it != state.worker_links.end()) {
    const WorkerIndex index = it->second;
    if (state.workers[index].peer.link == link) {
      lose_worker(state, index, /*blamed=*/true, "process ended", now, out);
    }
  } else if (const auto fe = state.frontend_links.find(link); fe != state.frontend_links.end()) {
    if (state.frontends[fe->second].link == link) frontend_gone(state, fe->second, now, out);
  }
}

void pool_faulted(State& state, LinkId link, TimeNs now, Outbox& out) {
  const auto it = state.worker_links.find(link);
  if (it == state.worker_links.end() || state.workers[it->second].peer.link != link) return;
  doubt_pool(state, it->second, now, out);
}

void send_failed(State& state, LinkId link, Outbox& out) {
  // A front end heals by itself: its heartbeats name what it misses.
  const auto it = state.worker_links.find(link);
  if (it == state.worker_links.end() || state.workers[it->second].peer.link != link) return;
  end_term(state, it->second, kBlameLater, Places::wait, "a message could not be sent", out);
}

void too_large(State& state, const MessageTooLarge& event, Outbox& out) {
  const auto it = state.worker_links.find(event.link);
  if (it == state.worker_links.end() || state.workers[it->second].peer.link != event.link) return;
  const std::string size = std::to_string(event.bytes) + " bytes; a message has at most " +
                           std::to_string(state.settings.message_bytes);
  if (Request* request = state.requests.find(event.request)) {
    end_request(state, *request, FinishReason::error, ErrorCode::too_long,
                "the request makes a message of " + size, out);
  }
  end_term(state, it->second, kBlameNobody, Places::wait, "a message of " + size, out);
}

struct Apply {
  State& state;
  TimeNs now;
  Outbox& out;

  void operator()(FromFrontend&& e) {
    apply_frontend(state, e.link, std::move(e.message), now, out);
  }
  void operator()(FromWorker&& e) { apply_worker(state, e.link, std::move(e.message), now, out); }
  void operator()(ProcessGone&& e) { peer_gone(state, e.link, now, out); }
  void operator()(PoolFaulted&& e) { pool_faulted(state, e.link, now, out); }
  void operator()(SendFailed&& e) { send_failed(state, e.link, out); }
  void operator()(MessageTooLarge&& e) { too_large(state, e, out); }
  void operator()(Tick&& e) { apply_tick(state, e.gap, now, out); }
  void operator()(SetDraining&& e) {
    for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
      if (state.workers[i].name() == e.worker) {
        const bool drained = state.workers[i].peer.draining;
        set_draining(state, i, e.draining, /*leave=*/false, now, out);
        prove_context(state, /*anew=*/!drained && state.workers[i].peer.draining);
      }
    }
  }
  void operator()(SetRole&& e) {
    for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
      if (state.workers[i].name() == e.worker) {
        const bool mixed = state.workers[i].role() == Role::mixed;
        hold_role(state, i, e.role, now, out);
        prove_context(state, /*anew=*/mixed && state.workers[i].role() != Role::mixed);
      }
    }
  }
  void operator()(AdminCancel&& e) {
    const auto it = state.by_name.find(e.request);
    if (it == state.by_name.end()) return;
    end_request(state, *state.requests.find(it->second), FinishReason::cancelled,
                ErrorCode::cancelled, "cancelled by an operator", out);
  }
};

}  // namespace

void apply(State& state, Event&& event, TimeNs now, Outbox& out) {
  state.now = now;
  out.message_bytes = state.settings.message_bytes;
  std::visit(Apply{state, now, out}, std::move(event));
}

}  // namespace baton
