#include "scheduler/plan/admission.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/beams.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/requests.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/plan/policy.h"

namespace baton {

bool awaits_pools(const State& state, bool again, TimeNs submitted) {
  return again || submitted - state.started < kWaitForPools;
}

namespace {

std::uint32_t proven_context(const State& state) {
  return fault(Fault::away_is_too_long) ? 0 : state.proven_context;
}

}  // namespace

bool may_fit_later(const State& state, const Request& request, std::uint32_t tokens, TimeNs now) {
  if (fault(Fault::small_pool_refuses)) return false;
  if (tokens <= context_for(state, request)) return true;
  if (tokens <= proven_context(state) && !request.beams &&
      now - std::max(request.submitted, state.context_lost) < kWaitForPools)
    return true;
  const auto loads = [now](const Worker& w) {
    return w.store.last_context == 0 && now - w.peer.heard < kWaitForPools &&
           (w.peer.state == WorkerState::registering || w.peer.state == WorkerState::loading);
  };
  return awaits_pools(state, request.again, request.submitted) &&
         (now - state.started < kWaitForPools ||
          std::any_of(state.workers.begin(), state.workers.end(), loads));
}

std::uint32_t context_for(const State& state, const Request& request) {
  return may_span(state, request) ? max_context(state) : largest_context(state);
}

bool refuse_too_long(State& state, const Worker& worker, Request& request, TimeNs now,
                     Outbox& out) {
  const std::uint32_t tokens = request.length() + 1;
  if (worker.store.holds(tokens)) return false;
  const auto index = static_cast<WorkerIndex>(&worker - state.workers.data());
  const bool together = state.settings.elastic && tokens <= context_around(state, index);
  if (together && may_span(state, request)) return false;
  if (may_fit_later(state, request, tokens, now)) return true;
  if (together && !request.beams) {
    end_request(state, request, FinishReason::error, ErrorCode::unavailable,
                "the workers whose pools hold it together could not read each other's", out);
    return true;
  }
  if (tokens <= proven_context(state) && !request.beams) {
    end_request(state, request, FinishReason::error, ErrorCode::unavailable,
                "the sequence has " + std::to_string(request.length()) +
                    " tokens; a worker whose pool holds it together with others is away, or they "
                    "cannot read each other's",
                out);
    return true;
  }
  if (may_span(state, request) && !request.generated.empty()) {  // clamp_output() let it run on
    end_request(state, request, FinishReason::length, ErrorCode::ok, "", out);
    return true;
  }
  end_request(state, request, FinishReason::error, ErrorCode::too_long,
              "the sequence has " + std::to_string(request.length()) +
                  " tokens; with one more it must fit the " +
                  std::to_string(worker.store.pool_tokens()) + " of " + worker.name() +
                  "'s KV pool and the " + std::to_string(worker.store.offer.max_context) +
                  " of its model",
              out);
  return true;
}

bool beams_fit(State& state, const Worker& worker, Request& request, TimeNs now, Outbox& out) {
  const std::uint32_t tokens = request.length() + 1;
  if (!request.beams || needs_handoff(state, request, worker)) return true;
  clamp_output(state, request);
  if (can_hold(worker, request, tokens)) return true;
  const bool elsewhere =
      std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
        return w.takes_work() && can_hold(w, request, tokens) &&
               may_prefill(state, request, w, now);
      });
  if (!elsewhere) {
    end_request(state, request, FinishReason::error, ErrorCode::kv_exhausted,
                cannot_hold(worker, request, tokens), out);
  }
  return false;
}

void clamp_output(const State& state, Request& request) {
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  const auto generated = static_cast<std::uint32_t>(request.generated.size());
  std::uint32_t context = context_for(state, request);
  // Those who would share it may not have joined yet: then the model alone cuts it. The pools do
  // when it grows, or finds no room.
  if (may_span(state, request) && state.now - state.started < kWaitForPools) {
    for (const Worker& w : state.workers) context = std::max(context, w.store.last_positions);
  }
  if (may_span(state, request)) context = std::max(context, state.proven_context);
  if (prompt + generated + 1 > context) {
    // It waits for a larger pool, whose size nobody knows yet, or decodes where its prompt was
    // computed, whose pool is larger than the decode workers': only the model bounds it.
    for (const Worker& w : state.workers) context = std::max(context, w.store.last_positions);
    if (prompt + generated + 1 > context) return;
  }
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, context - prompt);
}

}  // namespace baton
