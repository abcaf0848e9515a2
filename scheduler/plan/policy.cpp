#include "scheduler/plan/policy.h"

#include <algorithm>

#include "scheduler/apply/beams.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/tables.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/future_length.h"
#include "scheduler/prefix/prefix_cache.h"
#include "scheduler/prefix/prefix_pull.h"

namespace baton {

bool accepts(const Worker& worker, TimeNs now) {
  if (!worker.takes_work()) return false;
  return !worker.compute.steps.empty() || now - worker.peer.heard <= kStaleAfter;
}

bool decodes_here(const State& state, const Worker& worker) {
  return worker.decodes() || !any_decoder(state);
}

std::uint32_t watermark(const Settings& settings, const Worker& worker) {
  if (worker.role() == Role::prefill && worker.compute.decode_set.empty()) return 0;
  if (settings.watermark > 0) {
    return static_cast<std::uint32_t>(settings.watermark * worker.store.pool.total());
  }
  // One block of each group for every running sequence, but never more than a tenth of the pool.
  return std::min(worker.compute.sequences * worker.store.shape.groups.count,
                  worker.store.pool.total() / 10);
}

bool has_room(const State& state, const Worker& worker, const Request& request,
              std::uint32_t blocks) {
  if (worker.compute.sequences + worker.compute.expected == 0)
    return worker.store.pool.available_blocks() >= blocks;
  const std::uint32_t width = decodes_here(state, worker) ? request.sampling.num_beams : 1;
  const std::uint32_t running = worker.compute.sequences + worker.compute.expected;
  if (worker.compute.short_of_blocks || running + width > most_running(state, worker)) return false;
  const std::uint32_t available = worker.store.pool.available_blocks();
  // A beam's first fork takes a block of each group.
  const std::uint32_t forks = (width - 1) * worker.store.shape.groups.count;
  if (state.settings.admission == Admission::future && decodes_here(state, worker)) {
    return available >= blocks + forks && fits_to_the_end(state, worker, request);
  }
  return available >= blocks + forks + watermark(state.settings, worker);
}

namespace {

/// Blocks that a prompt takes where `prefix` of it is known.
std::uint32_t blocks_behind(const Worker& worker, const Request& request,
                            const BlockPool::Match& prefix) {
  const std::uint32_t known = prefix.columns * worker.store.tokens_per_block();
  return blocks_to_take(worker.store, {known, request.length() + 1}, prefix);
}

bool keeps_cached(const Settings& settings) {
  return settings.local_prefill.cached > 0 && settings.prefix_cache;
}

/// `prefix` is what `worker` knows of the prompt.
bool is_most(const Settings& settings, const Request& request, const Worker& worker,
             const BlockPool::Match& prefix) {
  return static_cast<double>(std::size_t{prefix.columns} * worker.store.tokens_per_block()) >=
         settings.local_prefill.cached * request.length();
}

/// Some decode worker can run the prompt now and has most of it: no prefill worker takes it.
bool some_decoder_has_most(const State& state, const Request& request, TimeNs now) {
  if (!keeps_cached(state.settings)) return false;
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    if (w.role() != Role::decode || !accepts(w, now)) return false;
    const BlockPool::Match prefix = cached_prefix(state, request, w, request.length() - 1);
    if (!is_most(state.settings, request, w, prefix)) return false;
    return can_hold(w, request, request.length() + 1) &&
           has_room(state, w, request, blocks_behind(w, request, prefix));
  });
}

}  // namespace

bool mostly_cached(const State& state, const Request& request, const Worker& worker) {
  return keeps_cached(state.settings) &&
         is_most(state.settings, request, worker,
                 cached_prefix(state, request, worker, request.length() - 1));
}

void look_after_kept(const State& state, Request& request) {
  constexpr std::uint32_t kFewTokens = 64;  // what a decode worker computes again at the most
  constexpr StepId kEvery = 8;              // steps: a long sequence has many blocks to look up
  Kept& kept = request.kept;
  if (kept.worker == kNobody || !kept.whole) return;
  const Worker& w = state.workers[kept.worker];
  if (w.peer.term != kept.term || (kept.seen != 0 && w.compute.sent < kept.seen + kEvery)) return;
  kept.seen = w.compute.sent;
  const BlockPool::Match found =
      cached_prefix(state, request, w, request.length() - 1, Reach::soon);
  const std::size_t tokens = std::size_t{found.columns} * w.store.tokens_per_block();
  kept.whole =
      tokens > 0 && tokens + std::max(kFewTokens, w.store.tokens_per_block()) >= request.length();
}

bool goes_back(const State& state, const Request& request, TimeNs now) {
  if (request.kept.worker == kNobody || !request.kept.whole) return false;
  const Worker& w = state.workers[request.kept.worker];
  return w.role() == Role::decode && w.peer.term == request.kept.term && accepts(w, now) &&
         can_hold(w, request, request.length() + 1);
}

bool has_waited(const Settings& settings, const Request& request, TimeNs now) {
  return settings.local_prefill.wait > 0 && now - request.arrival >= settings.local_prefill.wait;
}

bool lighter_elsewhere(const State& state, const Request& request, const Worker& worker,
                       TimeNs now) {
  if (worker.role() != Role::mixed || is_suspect(state, request)) return false;
  if (now - request.arrival >= kWaitForBalance) return false;
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& other) {
    return other.role() == Role::mixed && other.compute.sequences + 1 < worker.compute.sequences &&
           accepts(other, now) && other.compute.prefills.empty() && other.compute.spreads.empty() &&
           can_hold(other, request, request.length() + 1) &&
           has_room(state, other, request, other.store.shape.start_blocks(0, request.length() + 1));
  });
}

namespace {

/// A prefill worker that takes work has a pool that is large enough.
bool fits_some_prefill_worker(const State& state, const Request& request) {
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    return w.role() == Role::prefill && w.takes_work() && w.store.holds(request.length() + 1);
  });
}

}  // namespace

bool may_prefill(const State& state, const Request& request, const Worker& worker, TimeNs now) {
  const bool is_short = request.length() <= state.settings.local_prefill.tokens;
  const bool stays = request.local || is_short || avoids_pulls(state, request);
  switch (worker.role()) {
    case Role::mixed:
      return true;
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
                   std::size_t own_columns, TimeNs now) {
  if (!state.settings.prefix_cache || is_suspect(state, request)) return false;
  if (goes_back(state, request, now))
    return false;  // others leave it to this one, whatever they know
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& other) {
    if (&other == &worker || !accepts(other, now) || !may_prefill(state, request, other, now))
      return false;
    if (!other.store.holds(request.length() + 1)) return false;
    if (request.beams && !needs_handoff(state, request, other) &&
        !can_hold(other, request, request.length() + 1)) {
      return false;
    }
    const BlockPool::Match match = cached_prefix(state, request, other, request.length() - 1);
    if (match.columns <= own_columns) return false;
    if (!has_room(state, other, request, blocks_behind(other, request, match))) return false;
    std::size_t ahead = 0;  // prompt tokens that it has to compute before
    for (const SequenceId id : other.compute.prefills) {
      const Sequence& sequence = *state.sequences.find(id);
      ahead += sequence.prefill_length - sequence.scheduled;
    }
    std::size_t saved = (match.columns - own_columns) * other.store.tokens_per_block();
    // What can be pulled at the price of so many tokens is not worth a longer wait.
    if (may_pull_prefix(state, request, other, worker)) {
      saved = std::min<std::size_t>(saved, state.settings.prefix_pull_tokens);
    }
    return ahead < saved;
  });
}

bool may_pull(const Settings& settings, const Worker& worker) {
  if (settings.pull_watermark >= 1 || worker.compute.sequences == 0) return true;
  return worker.store.pool.owned_blocks() < settings.pull_watermark * worker.store.pool.total();
}

WorkerIndex choose_decoder(const State& state, const Request& request, WorkerIndex exporter,
                           const std::vector<bool>& spoken_for, TimeNs now) {
  WorkerIndex best = kNobody;
  std::size_t best_known = 0;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (i == exporter || !w.decodes() || !accepts(w, now) || !w.may_begin()) continue;
    if (spoken_for[i] || !reaches(state.workers[exporter], w) || !may_pull(state.settings, w))
      continue;
    const Sequence* sequence = state.sequences.find(request.source);
    const std::uint32_t length = sequence != nullptr ? sequence->prefill_length : request.length();
    if (!has_room(state, w, request, w.store.shape.start_blocks(length, length + 1))) continue;
    if (request.beams && !can_hold(w, request, length + 1)) continue;
    if (best != kNobody && w.compute.sequences > state.workers[best].compute.sequences) continue;
    const std::size_t known = cached_prefix(state, request, w, length, Reach::pool).columns;
    if (best != kNobody && w.compute.sequences == state.workers[best].compute.sequences &&
        known <= best_known)
      continue;
    best = i;
    best_known = known;
  }
  return best;
}

}  // namespace baton
