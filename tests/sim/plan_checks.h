// What every plan and pull that leaves the scheduler must keep to, checked from outside the
// planner.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton::sim {

/// Keeps, for each block of each pool, the last step that names it and for whom, and the last ones
/// that copy it out and fill it by a copy.
class PlanChecks {
 public:
  /// Each returns what is wrong with the message that is about to leave, or "".
  std::string plan(const State& state, LinkId link, const StepPlan& plan);
  std::string pull(const State& state, LinkId link, const Pull& pull);

 private:
  struct Use {
    SequenceId sequence = 0;
    StepId step = 0;
  };
  struct Pool {
    Term term = 0;
    std::vector<Use> last;
    std::vector<StepId> saved;
    std::vector<StepId> filled;
  };

  Pool& pool_of(const State& state, WorkerIndex index);
  std::string granted(const State& state, WorkerIndex index, SequenceId sequence, BlockId block,
                      const char* by);
  std::string copies(const State& state, WorkerIndex index, const StepPlan& plan);
  std::string copied(const State& state, const OpenPull& open);
  std::string forks(const State& state, WorkerIndex index, const StepPlan& plan);
  static std::string prefix(const State& state, const OpenPull& open);
  std::string rows(const State& state, WorkerIndex index, StepId step);

  std::string waits(const StepPlan& plan);

  std::vector<Pool> pools_;
  std::map<Term, StepId> sent_;  // last step of each term
};

}  // namespace baton::sim
