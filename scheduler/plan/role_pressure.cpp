#include "scheduler/plan/role_pressure.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/policy.h"

namespace baton {

namespace {

/// Steps that take so many times as long as the quickest ones press like a full batch: where a
/// step's time grows with its rows, another worker halves it long before places run out.
constexpr double kSlowSteps = 10;
/// Steps below this count as one that takes so long.
constexpr double kQuickStepUs = 1000;
/// Requests of the queue that are looked at: whoever has more waiting is pressed.
constexpr std::size_t kMostLooked = 4096;

/// Prompt tokens that nobody has begun to compute.
double waiting_tokens(const State& state, const std::vector<RoleSeat>& seats) {
  double tokens = 0;
  std::size_t looked = 0;
  for (const auto& [place, id] : state.waiting) {
    if (++looked > kMostLooked) break;
    tokens += state.requests.find(id)->length();
  }
  for (const RoleSeat& seat : seats) {
    for (const SequenceId id : state.workers[seat.worker].compute.prefills) {
      const Sequence& sequence = *state.sequences.find(id);
      tokens += sequence.prefill_length - std::min(sequence.scheduled, sequence.prefill_length);
    }
  }
  return tokens;
}

/// Seconds; the mean of those workers that have computed any. 0: not known.
double token_s(const State& state, const std::vector<RoleSeat>& seats) {
  double sum = 0;
  double known = 0;
  for (const RoleSeat& seat : seats) {
    const double us = state.workers[seat.worker].compute.costs.token_us();
    if (us <= 0) continue;
    sum += us;
    ++known;
  }
  return known == 0 ? 0 : sum / known * 1e-6;
}

double decode_load(const State& state, const Worker& w) {
  const double places = std::max(1U, most_running(state, w));
  const double blocks = std::max(1U, w.store.pool.total());
  const StepCosts& costs = w.compute.costs;
  const double slow = costs.decode_us / std::max(kQuickStepUs, costs.least_decode_us);
  return std::max({w.compute.sequences / places, w.store.pool.owned_blocks() / blocks,
                   w.compute.decode_set.empty() ? 0 : slow / kSlowSteps});
}

/// Workers' worth of prompts, smoothed over a fifth of `role_dwell`.
double prompt_load(const State& state, RoleWatch& watch, TimeNs now) {
  double us = 0;
  for (const Worker& w : state.workers) us += w.compute.costs.prompt_total_us;
  const TimeNs passed = now - watch.looked;
  // A worker's next process counts from 0.
  const double spent = std::max(0.0, us - std::exchange(watch.prompt_us, us));
  if (watch.looked == 0 || passed <= 0) return watch.prompt_load;
  const double window = static_cast<double>(std::max(state.settings.role_dwell / 5, kSecond / 2));
  const double past = std::exp(-static_cast<double>(passed) / window);
  const double load = spent * 1e3 / static_cast<double>(passed);
  return past * watch.prompt_load + (1 - past) * load;
}

}  // namespace

std::vector<RoleSeat> role_seats(const State& state, TimeNs now) {
  std::vector<RoleSeat> seats;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (!w.takes_work()) continue;
    RoleSeat seat;
    seat.worker = i;
    seat.home = w.home();
    seat.role = w.role();
    seat.free = !w.held && w.home() != Role::mixed && accepts(w, now);
    seat.since = w.role_since;
    seat.sequences = w.compute.sequences;
    seat.tokens = w.store.context();
    seat.blocks = w.store.pool.total();
    for (const Role role : {Role::prefill, Role::decode, Role::mixed}) {
      seat.roomy[static_cast<std::size_t>(role)] =
          w.step_room() >= state.settings.token_budget.of(role);
    }
    seats.push_back(seat);
  }
  return seats;
}

void measure_roles(State& state, const std::vector<RoleSeat>& seats, TimeNs now) {
  RoleWatch& watch = state.role_watch;
  watch.prompt_load = prompt_load(state, watch, now);
  watch.looked = now;
  RolePressure& p = watch.pressure;
  p.prompt_load = watch.prompt_load;
  const double worth = prefill_worth(seats);
  p.queue_s = worth == 0 ? 0 : waiting_tokens(state, seats) * token_s(state, seats) / worth;
  p.decode_load = 0;
  double places = 0;
  for (const RoleSeat& seat : seats) {
    const Worker& w = state.workers[seat.worker];
    if (!w.decodes()) continue;
    p.decode_load += decode_load(state, w);
    places = std::max<double>(places, most_running(state, w));
  }
  if (places > 0) p.decode_load += static_cast<double>(state.handoffs.size()) / places;
}

}  // namespace baton
