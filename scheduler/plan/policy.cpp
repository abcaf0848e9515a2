#include "scheduler/plan/policy.h"

#include <algorithm>

#include "scheduler/apply/lifecycle.h"
#include "scheduler/apply/blame.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/future_length.h"

namespace baton {

bool accepts(const Worker& worker, TimeNs now) {
  if (!worker.takes_work()) return false;
  return !worker.steps.empty() || now - worker.heard <= kStaleAfter;
}

bool decodes_here(const State& state, const Worker& worker) {
  return worker.decodes() || !any_decoder(state);
}

std::uint32_t watermark(const Settings& settings, const Worker& worker) {
  if (worker.identity.role == Role::prefill && worker.decode_set.empty()) return 0;
  if (settings.watermark > 0) {
    return static_cast<std::uint32_t>(settings.watermark * worker.pool.total());
  }
  // One block for every running sequence, but never more than a tenth of the pool.
  return std::min(worker.sequences, worker.pool.total() / 10);
}

bool has_room(const State& state, const Worker& worker, const Request& request,
              std::uint32_t blocks) {
  if (worker.sequences == 0) return worker.pool.available_blocks() >= blocks;
  const std::uint32_t width = worker.decodes() ? request.sampling.num_beams : 1;
  if (worker.short_of_blocks || worker.sequences + width > most_running(state, worker)) return false;
  const std::uint32_t available = worker.pool.available_blocks();
  if (state.settings.admission == Admission::future && decodes_here(state, worker)) {
    return available >= blocks + (width - 1) && fits_to_the_end(state, worker, request);
  }
  return available >= blocks + (width - 1) + watermark(state.settings, worker);
}

namespace {

bool keeps_cached(const Settings& settings) {
  return settings.local_prefill_cached > 0 && settings.prefix_cache;
}

/// `prefix` is what `worker` knows of the prompt.
bool is_most(const Settings& settings, const Request& request, const Worker& worker,
             const BlockPool::Match& prefix) {
  return static_cast<double>(prefix.blocks.size() * worker.tokens_per_block()) >=
         settings.local_prefill_cached * request.length();
}

/// Some decode worker can run the prompt now and has most of it: no prefill worker takes it.
bool some_decoder_has_most(const State& state, const Request& request, TimeNs now) {
  if (!keeps_cached(state.settings)) return false;
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    if (w.identity.role != Role::decode || !accepts(w, now)) return false;
    const BlockPool::Match prefix = cached_prefix(state, request, w, request.length() - 1);
    if (!is_most(state.settings, request, w, prefix)) return false;
    const std::uint32_t blocks = w.blocks_for(request.length() + 1);
    return can_hold(w, request, request.length() + 1) &&
           has_room(state, w, request, blocks - prefix.shared);
  });
}

}  // namespace

bool mostly_cached(const State& state, const Request& request, const Worker& worker) {
  return keeps_cached(state.settings) &&
         is_most(state.settings, request, worker, cached_prefix(state, request, worker, request.length() - 1));
}

void look_after_kept(const State& state, Request& request) {
  constexpr std::uint32_t kFewTokens = 64;  // what a decode worker computes again at the most
  constexpr StepId kEvery = 8;              // steps: a long sequence has many blocks to look up
  Kept& kept = request.kept;
  if (kept.worker == kNobody || !kept.whole) return;
  const Worker& w = state.workers[kept.worker];
  if (w.term != kept.term || (kept.seen != 0 && w.sent < kept.seen + kEvery)) return;
  kept.seen = w.sent;
  const BlockPool::Match found = cached_prefix(state, request, w, request.length() - 1, Reach::soon);
  const std::size_t tokens = found.blocks.size() * w.tokens_per_block();
  kept.whole = tokens > 0 && tokens + std::max(kFewTokens, w.tokens_per_block()) >= request.length();
}

bool goes_back(const State& state, const Request& request, TimeNs now) {
  if (request.kept.worker == kNobody || !request.kept.whole) return false;
  const Worker& w = state.workers[request.kept.worker];
  return w.identity.role == Role::decode && w.term == request.kept.term && accepts(w, now) &&
         can_hold(w, request, request.length() + 1);
}

bool has_waited(const Settings& settings, const Request& request, TimeNs now) {
  return settings.local_prefill_wait > 0 && now - request.arrival >= settings.local_prefill_wait;
}

bool lighter_elsewhere(const State& state, const Request& request, const Worker& worker, TimeNs now) {
  if (worker.identity.role != Role::mixed || is_suspect(state, request)) return false;
  if (now - request.arrival >= kWaitForBalance) return false;
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& other) {
    return other.identity.role == Role::mixed && other.sequences + 1 < worker.sequences &&
           accepts(other, now) && other.prefills.empty() &&
           can_hold(other, request, request.length() + 1) &&
           has_room(state, other, request, other.blocks_for(request.length() + 1));
  });
}

namespace {

/// A prefill worker that takes work has a pool that is large enough.
bool fits_some_prefill_worker(const State& state, const Request& request) {
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    return w.identity.role == Role::prefill && w.takes_work() && w.holds(request.length() + 1);
  });
}

}  // namespace

bool may_prefill(const State& state, const Request& request, const Worker& worker, TimeNs now) {
  const bool is_short = request.length() <= state.settings.local_prefill_threshold;
  const bool stays = request.local || is_short || avoids_pulls(state, request);
  switch (worker.identity.role) {
    case Role::mixed: return true;
    case Role::decode:
      return stays || has_waited(state.settings, request, now) || !is_fed(state, worker) ||
             !fits_some_prefill_worker(state, request) || mostly_cached(state, request, worker) ||
             (goes_back(state, request, now) && &state.workers[request.kept.worker] == &worker);
    // Somebody who decodes should take one that stays; if nobody does, better here than never.
    case Role::prefill:
      return (!stays || !any_decoder(state)) && !goes_back(state, request, now) &&
             !some_decoder_has_most(state, request, now);
  }
  return false;
}

bool better_placed(const State& state, const Request& request, const Worker& worker,
                   std::size_t own_blocks, TimeNs now) {
  if (!state.settings.prefix_cache || is_suspect(state, request)) return false;
  if (goes_back(state, request, now)) return false;  // others leave it to this one, whatever they know
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& other) {
    if (&other == &worker || !accepts(other, now) || !may_prefill(state, request, other, now)) return false;
    if (!other.holds(request.length() + 1)) return false;
    if (request.beams && !needs_handoff(state, request, other) &&
        !can_hold(other, request, request.length() + 1)) {
      return false;
    }
    const BlockPool::Match match = cached_prefix(state, request, other, request.length() - 1);
    if (match.blocks.size() <= own_blocks) return false;
    const std::uint32_t blocks = other.blocks_for(request.length() + 1);
    if (!has_room(state, other, request, blocks - match.shared)) return false;
    std::size_t ahead = 0;  // prompt tokens that it has to compute before
    for (const SequenceId id : other.prefills) {
      const Sequence& sequence = *state.sequences.find(id);
      ahead += sequence.prefill_length - sequence.scheduled;
    }
    std::size_t saved = (match.blocks.size() - own_blocks) * other.tokens_per_block();
    // What can be pulled at the price of so many tokens is not worth a longer wait.
    if (may_pull_prefix(state, request, other, worker)) {
      saved = std::min<std::size_t>(saved, state.settings.prefix_pull_tokens);
    }
    return ahead < saved;
  });
}

bool may_pull(const Settings& settings, const Worker& worker) {
  if (settings.pull_watermark >= 1 || worker.sequences == 0) return true;
  return worker.pool.owned_blocks() < settings.pull_watermark * worker.pool.total();
}

WorkerIndex choose_decoder(const State& state, const Request& request, WorkerIndex source,
                           const std::vector<bool>& spoken_for, TimeNs now) {
  WorkerIndex best = kNobody;
  std::size_t best_known = 0;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (i == source || !w.decodes() || !accepts(w, now) || !w.may_begin()) continue;
    if (spoken_for[i] || !reaches(state.workers[source], w) || !may_pull(state.settings, w)) continue;
    const Sequence* sequence = state.sequences.find(request.source);
    const std::uint32_t length = sequence != nullptr ? sequence->prefill_length : request.length();
    if (!has_room(state, w, request, w.blocks_for(length + 1))) continue;
    if (best != kNobody && w.sequences > state.workers[best].sequences) continue;
    const std::size_t known = cached_prefix(state, request, w, length, Reach::pool).blocks.size();
    if (best != kNobody && w.sequences == state.workers[best].sequences && known <= best_known) continue;
    best = i;
    best_known = known;
  }
  return best;
}

}  // namespace baton
