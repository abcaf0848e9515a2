// Whether every tenant pays for what it is given, once, and is given its share: told from the
// messages that leave the scheduler, and from who waits. Nothing here asks the planner.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler/state/cluster_state.h"
#include "tests/sim/oracle.h"
#include "tests/sim/scenario.h"

namespace baton::sim {

/// Of one scheduler's life.
class ShareChecks {
 public:
  explicit ShareChecks(const Scenario& scenario) : scenario_(scenario) {}

  /// A request of `spec` comes that the scheduler does not know: it begins anew.
  void submitted(const RequestSpec& spec, const Submit& submit);
  /// What is about to leave.
  void plan(const StepPlan& plan);
  void events(const State& state, FrontendIndex frontend, const Events& events);
  /// After planning: what is wrong, or "".
  std::string check(const State& state);
  /// After each event, and after planning: whether a tenant that comes to the queue begins beside
  /// those that are in it, or, where it was empty, beside the one that left it last.
  std::string check_returns(const State& state);

 private:
  struct Work {
    std::string tenant;
    std::uint32_t prompt = 0;    // tokens of it
    std::uint32_t computed = 0;  // the furthest that a row came
    std::uint32_t told = 0;      // tokens
  };
  struct Served {
    std::uint64_t prompt = 0;
    std::uint64_t output = 0;
    double weight = 1;
  };
  /// Two tenants that have both had somebody in the queue after each plan since some time: how much
  /// more the first one has been given for its weight, least and most.
  struct Race {
    double least = 0;
    double most = 0;
  };
  std::string check_books(const State& state) const;
  std::string check_races(const State& state);
  double worth(const Served& served) const;

  /// Tenants of one priority.
  struct Line {
    std::set<TenantIndex> queued;
    double last = 0;  // least counter that those who left the empty queue had
  };

  const Scenario& scenario_;
  std::map<std::uint64_t, Work> works_;                                 // by seed
  std::map<RequestId, std::uint64_t> seeds_;                            // by name
  std::map<SequenceId, std::pair<std::uint64_t, std::uint32_t>> rows_;  // seed, position
  std::map<std::string, Served> served_;
  std::map<std::pair<std::string, std::string>, Race> races_;
  std::map<std::int32_t, Line> lines_;  // by priority
  std::vector<double> counters_;        // of tenants, when they were looked at last
};

}  // namespace baton::sim
