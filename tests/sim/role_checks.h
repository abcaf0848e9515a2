// What `roles: auto` must keep to, checked from outside: nobody is turned to and fro, no side is
// left without anybody, and an operator's word stands.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton::sim {

class RoleChecks {
 public:
  /// Before time passes for the scheduler ...
  void before(const State& state);
  /// ... and after each event: what is wrong, or "".
  std::string after(const State& state, bool tick, TimeNs now);

 private:
  struct Able {
    bool prefill = false;
    bool decode = false;
  };
  static Able able(const State& state);
  std::string turned(const State& state, WorkerIndex index, bool mends, TimeNs now);
  std::string left_alone(const State& state, TimeNs now);

  std::vector<Role> roles_;  // by index, before the tick
  Able able_;
  std::map<std::string, TimeNs> changed_;  // by name
  std::map<std::string, Role> known_;
  std::deque<TimeNs> turns_;  // within the last `role_dwell`
  TimeNs alone_since_ = 0;
  TimeNs last_tick_ = 0;
  Epoch epoch_ = 0;
};

}  // namespace baton::sim
