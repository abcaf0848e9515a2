// What changes of roles must keep to, checked from outside: with `roles: auto` nobody is turned to
// and fro and no side is left without anybody; an operator's word stands, whoever dies.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/apply/events.h"
#include "scheduler/state/cluster_state.h"

namespace baton::sim {

class RoleChecks {
 public:
  /// Before each event ...
  void before(const State& state, const Event& event);
  /// ... and after it: what is wrong, or "".
  std::string after(const State& state, bool tick, TimeNs now);

 private:
  struct Able {
    bool prefill = false;
    bool decode = false;
  };
  static Able able(const State& state);
  std::string turned(const State& state, WorkerIndex index, bool mends, TimeNs now);
  std::string left_alone(const State& state, TimeNs now);
  void note_word(const State& state, const Event& event);
  std::string check_words(const State& state);

  std::vector<Role> roles_;  // by index, before the tick
  Able able_;
  std::map<std::string, TimeNs> changed_;  // by name
  std::map<std::string, Role> known_;
  std::deque<TimeNs> turns_;  // within the last `role_dwell`
  TimeNs alone_since_ = 0;
  TimeNs last_tick_ = 0;
  Epoch epoch_ = 0;
  struct Word {
    std::optional<Role> role;  // none: `roles: auto` has it
    bool here = false;         // said to this scheduler; else brought by a worker's process
  };
  std::map<std::string, Word> words_;  // what an operator has said last, by name
  Epoch words_epoch_ = 0;
};

}  // namespace baton::sim
