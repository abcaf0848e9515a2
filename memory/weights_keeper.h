// The memory of sealed weights, by the rules of shared_weights.h. It is held by descriptors:
// nothing is mapped here, and it has no names that could be left behind.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "memory/shared_weights.h"

namespace baton {

class WeightsKeeper {
 public:
  struct Answer {
    WeightsGiven message;
    int fd = -1;  // goes along with it; stays ours
  };
  /// Nothing: not yet.
  std::optional<Answer> ask(LinkNumber link, const WeightsAsk& ask, TimeNs now);
  /// What a link that was told to pack has packed.
  WeightsGiven take(LinkNumber link, UniqueFd packed, TimeNs now);
  void gone(LinkNumber link, TimeNs now) { rules_.gone(link, now); }
  void expire(TimeNs now);
  /// Empty: it is gone. Otherwise why not.
  std::string drop(const std::string& name);
  void report(TimeNs now, const std::function<std::int32_t(LinkNumber)>& pid_of,
              std::vector<MemoryEntry>& entries) const;

 private:
  struct Sealed {
    UniqueFd fd;
    std::uint64_t bytes = 0;
  };
  SharedWeights rules_;
  std::map<WeightsKey, Sealed, SharedWeights::KeyLess> sealed_;
};

}  // namespace baton
