#include "tests/sim/share_checks.h"

#include <algorithm>
#include <limits>

namespace baton::sim {

void ShareChecks::submitted(const RequestSpec& spec, const Submit& submit) {
  Work& work = works_[spec.sampling.seed];
  work = {spec.share.tenant, static_cast<std::uint32_t>(submit.prompt.size()), 0,
          static_cast<std::uint32_t>(submit.generated.size())};
  seeds_[{submit.request.frontend, submit.request.counter}] = spec.sampling.seed;
  served_[work.tenant].weight = spec.share.weight;
}

void ShareChecks::plan(const StepPlan& plan) {
  for (const AddSequence& add : plan.add) rows_[add.sequence] = {add.sampling.seed, add.computed};
  for (const PromptRow& row : plan.rows) {
    const auto known = rows_.find(row.sequence);
    if (known == rows_.end()) continue;
    auto& [seed, position] = known->second;
    position += row.n_tokens;
    Work& work = works_[seed];
    const std::uint32_t from = std::max(work.computed, position - row.n_tokens);
    const std::uint32_t to = std::min(work.prompt, position);
    if (from >= to) continue;
    served_[work.tenant].prompt += to - from;
    work.computed = to;
  }
}

void ShareChecks::events(const State& state, FrontendIndex frontend, const Events& events) {
  if (frontend >= state.frontends.size()) return;
  const Incarnation incarnation = state.frontends[frontend].identity.incarnation;
  for (std::size_t i = 0; i < events.counters.size(); ++i) {
    const auto seed = seeds_.find({incarnation, events.counters[i]});
    if (seed == seeds_.end()) continue;
    Work& work = works_[seed->second];
    const std::uint32_t end = events.first_index[i] + events.counts[i];
    if (end <= work.told) continue;
    served_[work.tenant].output += end - work.told;
    work.told = end;
  }
}

double ShareChecks::worth(const Served& served) const {
  return (static_cast<double>(served.prompt) +
          scenario_.settings.fair_output_cost * static_cast<double>(served.output)) /
         served.weight;
}

/// The scheduler's totals are what its messages show. Tokens are not always told: of searches they
/// come at the end, and nothing is sent to a front end that is gone.
std::string ShareChecks::check_books(const State& state) const {
  for (const Tenant& tenant : state.tenants.all()) {
    const auto known = served_.find(tenant.name);
    const Served served = known == served_.end() ? Served() : known->second;
    if (tenant.prompt_tokens != served.prompt) {
      return "tenant '" + tenant.name + "' pays for " + std::to_string(tenant.prompt_tokens) +
             " tokens of prompts; " + std::to_string(served.prompt) + " were computed for it";
    }
    if (scenario_.fair && tenant.output_tokens != served.output) {
      return "tenant '" + tenant.name + "' pays for " + std::to_string(tenant.output_tokens) +
             " tokens of replies; it was told " + std::to_string(served.output);
    }
  }
  return "";
}

/// While two tenants both wait, neither is given more than the other, but for what may run at once:
/// when a request is admitted, its tenant has had no more than the other one, and then at most all
/// places are its own until it is looked at again. Twice that, since the race may begin with the
/// other one ahead by as much.
std::string ShareChecks::check_races(const State& state) {
  std::map<std::string, bool> waits;
  double least_weight = 1e9;
  for (const auto& [name, served] : served_) {
    waits[name] = false;
    least_weight = std::min(least_weight, served.weight);
  }
  state.requests.each([&](const Request& request) {
    if (request.phase != Phase::waiting) return;
    const auto seed = seeds_.find(request.name);
    if (seed != seeds_.end()) waits[works_[seed->second].tenant] = true;
  });
  const Load& load = scenario_.load;
  const double one = load.max_prompt + scenario_.settings.fair_output_cost * load.max_output;
  const double places =
      static_cast<double>(scenario_.settings.max_running * scenario_.workers.size());
  const double bound = 2 * (places + 1) * one / least_weight;
  for (auto a = served_.begin(); a != served_.end(); ++a) {
    for (auto b = std::next(a); b != served_.end(); ++b) {
      const std::pair key(a->first, b->first);
      if (!waits[a->first] || !waits[b->first]) {
        races_.erase(key);
        continue;
      }
      const double ahead = worth(a->second) - worth(b->second);
      Race& race = races_.try_emplace(key, Race{ahead, ahead}).first->second;
      race.least = std::min(race.least, ahead);
      race.most = std::max(race.most, ahead);
      if (race.most - race.least <= bound) continue;
      return "while both wait, tenant '" + (ahead == race.most ? a : b)->first + "' is given " +
             std::to_string(race.most - race.least) + " tokens more than '" +
             (ahead == race.most ? b : a)->first + "' for its weight; " + std::to_string(bound) +
             " may be";
    }
  }
  return "";
}

std::string ShareChecks::check_returns(const State& state) {
  if (scenario_.tenants == 0) return "";
  const Tenants& tenants = state.tenants;
  std::map<std::int32_t, std::set<TenantIndex>> queued;
  for (const auto& [priority, line] : lines_) queued[priority];
  for (const TenantIndex i : tenants.queued()) queued[tenants.of(i).priority].insert(i);
  for (const auto& [priority, now] : queued) {
    Line& line = lines_[priority];
    // Within one event nothing has an order here: whoever was queued before it may have left before
    // a newcomer came, or after. Counters only grow, so those before the event are the least.
    double least = line.queued.empty() ? line.last : std::numeric_limits<double>::infinity();
    for (const TenantIndex i : line.queued) least = std::min(least, counters_[i]);
    for (const TenantIndex i : now) {
      if (!line.queued.contains(i) && tenants.of(i).counter + 1e-9 < least)
        return "tenant '" + tenants.of(i).name + "' comes to the queue with a claim saved up";
    }
    // Requests that end as they come enter and leave the queue unseen. Their tenant began with this
    // or more, and does not grow by what the one before it is given from now on.
    if (now.empty() && !line.queued.empty()) line.last = least;
    line.queued = now;
  }
  counters_.clear();
  for (const Tenant& tenant : tenants.all()) counters_.push_back(tenant.counter);
  return "";
}

std::string ShareChecks::check(const State& state) {
  std::string what = check_books(state);
  if (what.empty() && scenario_.fair) what = check_races(state);
  return what;
}

}  // namespace baton::sim
