#include "scheduler/plan/place_handoffs.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ipc/fault_points.h"
#include "scheduler/apply/beams.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/policy.h"
#include "scheduler/plan/queue_order.h"
#include "scheduler/plan/static_batching.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

namespace {

bool could_decode(const Worker& w, const Request& request, std::uint32_t tokens) {
  return w.takes_work() && w.decodes() && can_hold(w, request, tokens);
}

bool fits_some_decoder(const State& state, const Request& request, std::uint32_t tokens) {
  return std::any_of(state.workers.begin(), state.workers.end(),
                     [&](const Worker& w) { return could_decode(w, request, tokens); });
}

/// Marks whoever could decode it once there is room; false if nobody within reach ever could.
bool wait_for_room(const State& state, const Worker& exporter, const Request& request,
                   std::uint32_t tokens, std::vector<bool>& spoken_for) {
  bool any = false;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (!could_decode(w, request, tokens) || !reaches(exporter, w)) continue;
    spoken_for[i] = any = true;
  }
  return any;
}

/// Decode workers that somebody waits for who was preempted there: nobody new takes the room.
std::vector<bool> awaited_by_preempted(State& state, TimeNs now) {
  std::vector<bool> awaited(state.workers.size(), false);
  int looked = 0;
  int others = 0;
  QueueWalk walk(state);
  for (std::uint64_t id = walk.next(); id != 0; id = walk.next()) {
    Request& request = *state.requests.find(id);
    const WorkerIndex worker = request.kept.worker;
    if (++looked > kAsideLook || (worker == kNobody && ++others > kQueueLook)) break;
    if (worker == kNobody || awaited[worker] || !static_batch_allows(state, request)) continue;
    look_after_kept(state, request);
    awaited[worker] = goes_back(state, request, now);
  }
  return awaited;
}

/// Its worker decodes, too, since it was given another role.
bool stays_at_source(const Worker& w, const Request& request, const Sequence& source) {
  return could_decode(w, request, source.prefill_length + 1);
}

/// A prompt that stays where it was prefilled.
void decode_at_source(State& state, Request& request, Sequence& source) {
  if (request.phase != Phase::handoff) return;  // its last chunk will see that it stays
  if (source.parked) return;                    // nobody decodes there yet
  state.handoffs.erase({request.place, request.id});
  begin_decode(state, request, source);
}

}  // namespace

void place_handoffs(State& state, TimeNs now, Outbox& out) {
  std::vector<bool> spoken_for = awaited_by_preempted(state, now);
  if (state.handoffs.empty()) return;
  const bool decoder = any_decoder(state);
  if (!decoder && state.settings.no_decode == NoDecode::wait) return;
  for (const std::uint64_t id : handoffs_in_order(state)) {
    Request& request = *state.requests.find(id);
    Sequence& source = *state.sequences.find(request.source);
    if (!decoder || avoids_pulls(state, request) ||
        stays_at_source(state.workers[source.worker], request, source) ||
        !reaches_some_decoder(state, state.workers[source.worker])) {
      decode_at_source(state, request, source);
      continue;
    }
    if (request.handoff_not_before > now) continue;
    const WorkerIndex choice = choose_decoder(state, request, source.worker, spoken_for, now);
    if (choice == kNobody) {
      const std::uint32_t tokens = source.prefill_length + 1;
      if (wait_for_room(state, state.workers[source.worker], request, tokens, spoken_for)) continue;
      if (fits_some_decoder(state, request, tokens) &&  // but none that it reaches
          can_hold(state.workers[source.worker], request, tokens)) {
        decode_at_source(state, request, source);
        continue;
      }
      if (!request.beams && may_fit_later(state, request, tokens, now)) continue;
      const auto some = std::find_if(state.workers.begin(), state.workers.end(),
                                     [](const Worker& w) { return w.takes_work() && w.decodes(); });
      end_request(state, request, FinishReason::error, ErrorCode::kv_exhausted,
                  request.beams && some != state.workers.end()
                      ? cannot_hold(*some, request, tokens)
                      : std::to_string(tokens) + " tokens fit the KV pool of no decode worker",
                  out);
      continue;
    }
    Worker& w = state.workers[choice];
    if (!grammar_ready(w, request) &&
        w.compute.adds.size() >= kMostHeld) {  // it waits at its source
      ask_grammar(state, w, request, /*awaited=*/true, now, out);
      continue;
    }
    const bool piecemeal = fault(Fault::piecemeal_reservation);
    const std::uint32_t length = source.prefill_length;
    const StartSpan span = piecemeal ? StartSpan() : StartSpan{length, length + 1};
    const BlockPool::Match prefix =
        piecemeal ? BlockPool::Match() : cached_prefix(state, request, w, length, Reach::pool);
    clamp_output(state, request);
    Sequence* target = place_sequence(state, request, choice, span, prefix, Writer::pull);
    target->prefill_length = length;
    target->is_target = true;
    target->pulled = target->remembered;
    state.counters.pulls_saved += target->pulled;
    request.target = target->id;
    if (request.phase == Phase::handoff) request.times.enter(Part::handoff, now);
    state.handoffs.erase({request.place, request.id});
    advance_handoff(state, request, now, out);
  }
}

}  // namespace baton
