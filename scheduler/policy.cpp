#include "scheduler/policy.h"

#include <algorithm>
#include <utility>

#include "scheduler/lifecycle.h"

namespace baton {

bool accepts(const Worker& worker, TimeNs now) {
  if (!worker.takes_work()) return false;
  return !worker.steps.empty() || now - worker.heard <= kStaleAfter;
}

std::uint32_t watermark(const Worker& worker) {
  if (worker.identity.role == Role::prefill && worker.decode_set.empty()) return 0;
  // One block for every running sequence, but never more than a tenth of the pool.
  return std::min(worker.sequences, worker.pool.total() / 10);
}

bool has_room(const State& state, const Worker& worker, std::uint32_t blocks) {
  if (worker.sequences == 0) return worker.pool.free_blocks() >= blocks;
  if (worker.short_of_blocks || worker.sequences >= state.settings.max_running) return false;
  return worker.pool.free_blocks() >= blocks + watermark(worker);
}

bool may_prefill(const State& state, const Request& request, const Worker& worker) {
  const bool is_short = request.length() <= state.settings.local_prefill_threshold;
  const bool stays = request.local || is_short;
  switch (worker.identity.role) {
    case Role::mixed: return true;
    case Role::decode: return stays || !is_fed(state, worker);
    // Somebody who decodes should take one that stays; if nobody does, better here than never.
    case Role::prefill: return !stays || !any_decoder(state);
  }
  return false;
}

bool is_suspect(const State& state, const Request& request) {
  return request.deaths > 0 && request.deaths + 1 >= state.settings.max_deaths;
}

bool runs_suspect(const State& state, const Worker& worker) {
  const auto suspect = [&](SequenceId id) {
    const Sequence* sequence = state.sequences.find(id);
    const Request* request = sequence != nullptr ? state.requests.find(sequence->request) : nullptr;
    return request != nullptr && is_suspect(state, *request);
  };
  if (std::any_of(worker.prefills.begin(), worker.prefills.end(), suspect)) return true;
  // Its last chunk is in flight: the first token will clear it.
  return std::any_of(worker.steps.begin(), worker.steps.end(), [&](const InFlightStep& step) {
    return std::any_of(step.rows.begin(), step.rows.end(),
                       [&](const auto& row) { return suspect(row.first); });
  });
}

WorkerIndex choose_decoder(const State& state, const Request& request, WorkerIndex source,
                           const std::vector<bool>& spoken_for, TimeNs now) {
  WorkerIndex best = kNobody;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (i == source || !w.decodes() || !accepts(w, now)) continue;
    if (spoken_for[i] || !reaches(state.workers[source], w)) continue;
    const Sequence* sequence = state.sequences.find(request.source);
    const std::uint32_t length = sequence != nullptr ? sequence->prefill_length : request.length();
    if (!has_room(state, w, w.blocks_for(length + 1)) || runs_suspect(state, w)) continue;
    if (best == kNobody || w.sequences < state.workers[best].sequences) best = i;
  }
  return best;
}

Request* choose_victim(State& state, WorkerIndex worker) {
  Request* victim = nullptr;
  std::uint32_t candidates = 0;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker != worker || sequence.retiring) return;
    Request* request = state.requests.find(sequence.request);
    ++candidates;
    if (victim == nullptr || std::pair(request->arrival, request->id) >
                                 std::pair(victim->arrival, victim->id)) {
      victim = request;
    }
  });
  return candidates > 1 ? victim : nullptr;
}

}  // namespace baton
