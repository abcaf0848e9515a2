// The pulls of the last second, for people's eyes: most last shorter than the time between two
// looks. Kept only while somebody looks. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

struct SeenPull {
  PullId id = 0;
  RequestId request;
  WorkerIndex from = kNobody;
  WorkerIndex to = kNobody;
  std::vector<BlockId> source, target;
  TimeNs ended = 0;
};

class PullWatch {
 public:
  /// Somebody looks.
  void look(TimeNs now);
  /// A pull is answered; called before the books hear of it.
  void ended(const State& state, PullId id, TimeNs now);
  /// Those that ended within kKept; the newest last, kMost at the most.
  const std::deque<SeenPull>& recent() const { return recent_; }

  static constexpr TimeNs kKept = kSecond;
  static constexpr std::size_t kMost = 64;
  /// Nobody has looked for so long: nothing is noted.
  static constexpr TimeNs kPatience = 3 * kSecond;

 private:
  TimeNs looked_ = -kPatience;
  std::deque<SeenPull> recent_;
};

}  // namespace baton
