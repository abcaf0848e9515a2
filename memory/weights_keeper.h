// The memory of sealed weights, by the rules of shared_weights.h. On CPUs it is held by
// descriptors: nothing is mapped here, and it has no names that could be left behind. On a GPU this
// process allocates it, and "sealed" is its word: nothing there can be mapped for reading alone, so
// whoever maps it compares the sum of what lies there.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "memory/device_allocator.h"
#include "memory/shared_weights.h"

namespace baton {

class WeightsKeeper {
 public:
  WeightsKeeper() = default;
  /// Of a GPU. `process` is this one's name; `device` outlives this.
  WeightsKeeper(const std::string& process, DeviceAllocator& device);

  struct Answer {
    WeightsGiven message;
    int fd = -1;  // goes along with it; stays ours
  };
  struct Asker {
    LinkNumber link = 0;
    std::int32_t pid = 0;
  };
  /// Nothing: not yet.
  std::optional<Answer> ask(const Asker& asker, const WeightsAsk& ask, TimeNs now);
  /// What a link that was told to pack has packed.
  WeightsGiven take(LinkNumber link, const WeightsSealed& sealed, UniqueFd packed, TimeNs now);
  void gone(LinkNumber link, TimeNs now);
  /// To be called again and again: gives back what nobody needs any more.
  void expire(TimeNs now);
  /// Gives back what nobody uses at once; false: there was nothing.
  bool drop_unused(TimeNs now);
  /// Empty: it is gone. Otherwise why not.
  std::string drop(const std::string& name);
  void report(TimeNs now, const std::function<std::int32_t(LinkNumber)>& pid_of,
              std::vector<MemoryEntry>& entries) const;

 private:
  /// What a copy lies in, while it is packed and after.
  struct Held {
    UniqueFd fd;        // on CPUs, once it is sealed
    DeviceBlock block;  // on a GPU
    std::uint64_t bytes = 0;
    std::uint64_t sum = 0;
    LinkNumber packer = 0;  // on a GPU, until it is sealed
    UniqueFd packer_pidfd;  // likewise
  };
  /// Memory of a GPU that is no copy any more, but is not free yet.
  struct Leaving {
    DeviceBlock block;
    std::set<LinkNumber> users;
    UniqueFd writer;  // a pidfd: a process that may write until it has ended
  };
  void fill(const Asker& asker, const WeightsAsk& ask, TimeNs now, WeightsGiven& message);
  void forget_damaged(const WeightsAsk& ask);
  void release(const WeightsKey& key, std::set<LinkNumber> users = {});

  SharedWeights rules_;
  DeviceAllocator* device_ = nullptr;  // null: on CPUs
  std::map<WeightsKey, Held, SharedWeights::KeyLess> held_;
  std::vector<Leaving> leaving_;
};

}  // namespace baton
