// Counts what crosses the queues, by message type: the figure behind "bytes per prompt token".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ipc/codec.h"

namespace baton {

class Traffic {
 public:
  struct Count {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
  };

  template <typename M>
  void count(const M& /*message*/, std::size_t bytes) {
    static_assert(MessageTag<M>::value < kTags);
    Entry& entry = entries_[MessageTag<M>::value];
    entry.name = MessageTag<M>::name;
    ++entry.count.messages;
    entry.count.bytes += bytes;
  }

  std::map<std::string, Count> by_type() const {
    std::map<std::string, Count> types;
    for (const Entry& entry : entries_) {
      if (entry.name != nullptr) types[entry.name] = entry.count;
    }
    return types;
  }

 private:
  static constexpr std::size_t kTags = 128;
  struct Entry {
    const char* name = nullptr;
    Count count;
  };
  std::array<Entry, kTags> entries_{};
};

}  // namespace baton
