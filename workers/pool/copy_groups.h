// Which copies of a step may run beside one another: a kernel that gets a list of copies does them
// in no order. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/messages.h"

namespace baton {

class CopyGroups {
 public:
  /// `blocks`: how many ids there are, in both parts of the pool.
  explicit CopyGroups(std::size_t blocks) : marks_(blocks) {}

  /// Cuts the list into groups that run one after another; within a group no copy reads or writes
  /// what another one writes. Returns the index behind the last copy of each; valid until the next
  /// call.
  const std::vector<std::size_t>& split(std::span<const CopyOp> copies) {
    ends_.clear();
    ++group_;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const CopyOp& op = copies[i];
      if (written(op.from) || touched(op.to)) {
        ends_.push_back(i);
        ++group_;
      }
      marks_[op.from] = 2 * group_;
      marks_[op.to] = 2 * group_ + 1;
    }
    if (!copies.empty()) ends_.push_back(copies.size());
    return ends_;
  }

 private:
  bool written(BlockId block) const { return marks_[block] == 2 * group_ + 1; }
  bool touched(BlockId block) const { return marks_[block] >= 2 * group_; }

  std::vector<std::uint64_t>
      marks_;  // by block: the last group that read it, twice; + 1: that wrote it
  std::uint64_t group_ = 0;
  std::vector<std::size_t> ends_;
};

}  // namespace baton
