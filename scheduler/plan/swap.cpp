#include "scheduler/plan/swap.h"

#include <algorithm>

namespace baton {

namespace {

/// Blocks of a pool that are to be free, or known to its host part, before somebody needs them: a
/// share of it, and no more than are looked through in microseconds at each plan.
constexpr std::uint32_t kAheadShare = 16;
constexpr std::uint32_t kMostAhead = 512;
/// Weight of what was measured before, at each new step with prompts.
constexpr double kPast = 0.95;

/// Microseconds that computing a token of a prompt takes where `worker`'s sequences would be
/// computed again. One that has not computed any hands that to others.
double token_us(const State& state, const Worker& worker) {
  if (worker.compute.costs.token_us() > 0) return worker.compute.costs.token_us();
  double least = 0;
  for (const Worker& other : state.workers) {
    const double us = other.compute.costs.token_us();
    if (other.ready() && us > 0 && (least == 0 || us < least)) least = us;
  }
  return least;
}

}  // namespace

void StepCosts::take(double step_us, std::uint32_t tokens, bool decodes, double pairs) {
  if (tokens == 0) {
    if (!decodes) return;
    decode_us = decode_us == 0 ? step_us : 0.9 * decode_us + 0.1 * step_us;
    if (least_decode_us == 0 || decode_us < least_decode_us) least_decode_us = decode_us;
    return;
  }
  const double extra = std::max(0.0, step_us - (decodes ? decode_us : 0));
  if (pairs > 0) prompts.take(extra, tokens, pairs);
  prompt_total_us += extra;
  prompt_us = kPast * prompt_us + extra;
  prompt_tokens = kPast * prompt_tokens + tokens;
}

bool swaps(const State& state, const Worker& worker) {
  if (worker.store.pool.host_total() == 0 || !state.settings.prefix_cache) return false;
  switch (state.settings.swap) {
    case Swap::always:
      return true;
    case Swap::never:
      return false;
    case Swap::automatic:
      break;
  }
  const double again = token_us(state, worker) * worker.store.tokens_per_block();
  return again == 0 || 2.0 * worker.store.offer.host_block_us < again;
}

Saving saving_of(const State& state, Worker& worker) {
  return {swaps(state, worker) ? &worker.store.copies : nullptr,
          state.settings.swap == Swap::always};
}

void save_ahead(const State& state, Worker& worker) {
  BlockPool& pool = worker.store.pool;
  // More than the host part has room for would push each other out of it.
  const std::uint32_t ahead =
      std::min(std::clamp(pool.total() / kAheadShare, 1U, kMostAhead), pool.host_total() / 2);
  if (pool.free_blocks() >= ahead || !swaps(state, worker)) return;
  // What is being copied is given to nobody until the result is in: nobody may have to wait for
  // that.
  const std::uint32_t spare =
      pool.available_blocks() - std::min(pool.available_blocks(), worker.compute.sequences);
  pool.save_oldest(ahead - pool.free_blocks(), std::min(state.settings.swap_step_blocks, spare),
                   saving_of(state, worker));
}

}  // namespace baton
