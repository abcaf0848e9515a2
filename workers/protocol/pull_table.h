// Which pulls are open and which foreign pools may be mapped. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"

namespace baton {

/// Open pulls of the current term, plus those of an ended one that are still out, and the foreign
/// allocations that were ever named to the pull thread and not yet unmapped.
class PullTable {
 public:
  /// Takes a pull in, or says why it cannot run.
  std::optional<std::string> add(Pull&& pull, std::uint32_t own_blocks, std::size_t max_open);
  /// The next one to hand out, if fewer than `at_once` are out.
  std::optional<Pull> next(std::size_t at_once);
  /// `good`: it has not failed. False: no such pull was handed out.
  bool finished(PullId pull_id, bool good);
  /// Term end: forgets what was not handed out yet.
  void forget_waiting();

  std::size_t out() const { return out_.size(); }
  std::size_t open() const { return out_.size() + waiting_.size(); }
  bool knows(PullId pull_id) const;

  /// Marks an allocation for closing (asked for, or its exporter is gone): later pulls from it
  /// fail.
  void want_close(AllocationId allocation);
  /// It was named to the pull thread and is not unmapped yet.
  bool mapped(AllocationId allocation) const { return mappings_.count(allocation) != 0; }
  std::vector<AllocationId> mapped() const;
  /// Blocks of it that rows may name: 0 unless a pull that asked for that has succeeded, and it is
  /// not to be closed.
  std::uint32_t readable(AllocationId allocation) const;
  bool wants_closes() const;
  /// Marked allocations without an open pull that nobody `reads`; each is returned once.
  std::vector<AllocationId> begin_closes(const std::function<bool(AllocationId)>& reads);
  void closed(AllocationId allocation) { mappings_.erase(allocation); }

 private:
  struct Mapping {
    std::size_t open = 0;  // pulls waiting or out
    bool want_close = false;
    bool closing = false;
    std::uint32_t readable = 0;
  };
  struct Out {
    PullId pull_id = 0;
    AllocationId allocation = 0;
    std::uint32_t in_place = 0;  // blocks that are readable if it succeeds
  };

  void release(AllocationId allocation);

  std::deque<Pull> waiting_;
  std::vector<Out> out_;
  std::map<AllocationId, Mapping> mappings_;
};

}  // namespace baton
