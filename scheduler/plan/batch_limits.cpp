#include "scheduler/plan/batch_limits.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/plan/policy.h"

namespace baton {

std::uint32_t batch_bucket(const std::vector<std::uint32_t>& sizes, std::size_t queued) {
  if (sizes.empty()) return kNoLimit;
  const auto it = std::lower_bound(sizes.begin(), sizes.end(), queued);
  return it == sizes.end() ? sizes.back() : *it;
}

std::uint32_t step_tokens(const Settings& settings, const Worker& worker) {
  const std::uint32_t budget = settings.token_budget.of(worker.role());
  if (fault(Fault::step_room_ignored)) return budget;
  return std::min(budget, worker.step_room());
}

std::uint32_t most_prompt_rows(const State& state) {
  return batch_bucket(state.settings.prefill_batch_size, state.queued);
}

std::uint32_t most_running(const State& state, const Worker& worker) {
  const Settings& settings = state.settings;
  // Should its decode workers die, they all decode here.
  if (!decodes_here(state, worker)) return std::min(settings.max_running, worker.step_room());
  // Every one that decodes takes a token of each step.
  const std::uint32_t most = std::min(settings.max_running, step_tokens(settings, worker));
  return std::min(most, batch_bucket(settings.decode_batch_size, state.queued));
}

std::uint32_t most_beams(const Settings& settings) {
  if (settings.decode_batch_size.empty()) return settings.max_running;
  return std::min(settings.max_running, settings.decode_batch_size.back());
}

}  // namespace baton
