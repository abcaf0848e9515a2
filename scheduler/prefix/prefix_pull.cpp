// The beginning of a prompt that another worker's pool knows better, wherever it lies: a chat's
// last turn was decoded somewhere else than the next one is prefilled. Those blocks are pulled like
// the ones of a hand-off, before the first row of the prompt.
//
// Order that must hold: the sequence has all its blocks before the pull; the source's blocks are
// pinned, so that nobody is given them, until the pull has been answered; what was pulled is
// entered into the target's index, and its worker hears of the sequence, after that. If the pull
// fails, the prompt is computed from where the target's own cache ends. Whatever takes the sequence
// off its worker meanwhile leaves its blocks fenced by the pull, as those of a hand-off.
#include "scheduler/prefix/prefix_pull.h"

#include <algorithm>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/requests.h"
#include "scheduler/plan/policy.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

bool pulls_prefixes(const Settings& settings) {
  return settings.prefix_cache && settings.prefix_pull_tokens != 0;
}

bool may_pull_prefix(const State& state, const Request& request, const Worker& from,
                     const Worker& to) {
  return pulls_prefixes(state.settings) && !request.prefix_pull_failed &&
         !is_suspect(state, request) && request.deaths.of(Stage::pull) == 0 && &from != &to &&
         from.takes_work() && reaches(from, to);
}

namespace {

/// No window looks back as far as a whole block: there is nothing to pull.
bool is_all_behind(const std::vector<BlockId>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [](BlockId b) { return b == kNoBlock; });
}

}  // namespace

PrefixSource find_prefix(const State& state, const Request& request, WorkerIndex worker,
                         std::uint32_t own_columns) {
  PrefixSource best;
  if (!pulls_prefixes(state.settings)) return best;
  const Worker& to = state.workers[worker];
  const std::uint32_t most = request.length() - 1;
  std::uint32_t wanted = own_columns + to.store.columns_for(state.settings.prefix_pull_tokens);
  for (WorkerIndex i = 0; i < state.workers.size() && wanted <= most / to.store.tokens_per_block();
       ++i) {
    const Worker& from = state.workers[i];
    if (!may_pull_prefix(state, request, from, to)) continue;
    const BlockPool::Match match = cached_prefix(state, request, from, most, Reach::others);
    if (match.columns < wanted) continue;
    const std::size_t own = std::size_t{own_columns} * to.store.shape.groups.count;
    std::vector<BlockId> behind(match.blocks.begin() + static_cast<std::ptrdiff_t>(own),
                                match.blocks.end());
    if (is_all_behind(behind)) continue;
    best = {i, std::move(behind), match.columns};
    wanted = match.columns + 1;
  }
  return best;
}

bool is_being_pulled(const State& state, const PrefixSource& prefix, WorkerIndex worker) {
  bool found = false;
  if (prefix.worker == kNobody) return found;
  const auto first = std::find_if(prefix.blocks.begin(), prefix.blocks.end(),
                                  [](BlockId block) { return block != kNoBlock; });
  state.pulls.each([&](const OpenPull& t) {
    const Request* request = state.requests.find(t.request);
    found = found || (t.from_worker == prefix.worker && t.to_worker == worker && !t.is_probe() &&
                      t.from.front() == *first && request != nullptr &&
                      request->phase == Phase::pull && request->source == t.target);
  });
  return found;
}

void pull_prefix(State& state, Request& request, Sequence& sequence, const PrefixSource& prefix,
                 TimeNs now, Outbox& out) {
  sequence.pulled = sequence.remembered;
  send_pull(state, request, prefix.worker, prefix.blocks, sequence, now, out);
  ++state.counters.prefix_pulls;
  request.phase = Phase::pull;
  request.times.enter(request.generated.empty() ? Part::prefix_pull : Part::recompute, now);
  if (fault(Fault::prefix_not_awaited)) prefix_pulled(state, request, /*failed=*/false);
}

void prefix_pulled(State& state, Request& request, bool failed) {
  Sequence& sequence = *state.sequences.find(request.source);
  Worker& w = state.workers[sequence.worker];
  if (failed) {
    request.prefix_pull_failed = true;
    // Its table begins where its windows would look from behind what was pulled.
    if (!w.store.shape.plain()) {
      request.times.lost_place(MoveCause::pull, sequence.worker, state.now);
      return requeue(state, request);
    }
  } else {
    const std::uint32_t tokens = sequence.pulled * w.store.tokens_per_block();
    state.counters.pulled_prefix_tokens += tokens - sequence.computed;
    sequence.scheduled = sequence.computed = tokens;
    if (request.generated.empty()) {
      request.pulled_tokens = tokens - request.cached_tokens;
      request.cached_tokens = tokens;
    }
    remember_prefix(state, sequence);
  }
  request.phase = Phase::prefill;
  request.times.enter(computing(request), state.now);
  w.compute.prefills.push_back(
      sequence.id);  // its worker hears of it with the next plan that has room for a row
}

}  // namespace baton
