// What a pool still holds when its worker's term has ended in the middle of its work. Pure: what
// was sent and not answered goes in, and for each block the slots come out that nothing of it can
// have written.
//
// A worker does what it was sent, and nothing else writes to its pool. So whatever an answer has
// told of stays as it is, but for the write sets of what has no answer yet: each of those writes
// may have happened, not happened, or been cut off in the middle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// Slots of a block that something writes: `first` and all behind it. A copy or a pull writes the
/// whole block, a step the slots of its tokens.
struct SlotWrite {
  BlockId block = 0;
  std::uint32_t first = 0;
  bool operator==(const SlotWrite&) const = default;
};

/// Appends the writes of a step that computes `tokens` tokens of a sequence from `position` on,
/// whose blocks have `per_block` slots. `blocks` reach as far; they are `groups` side by side.
void add_step_writes(std::span<const BlockId> blocks, std::uint32_t position, std::uint32_t tokens,
                     std::uint32_t per_block, std::vector<SlotWrite>& writes,
                     std::uint32_t groups = 1);

class Trust {
 public:
  /// `blocks`: of both parts of the pool. `unanswered`: everything that may be written, in any
  /// order.
  Trust(std::uint32_t blocks, std::uint32_t per_block, std::span<const SlotWrite> unanswered);

  /// Slots of the block, from its beginning on, that are as they were.
  std::uint32_t good_slots(BlockId block) const { return good_[block]; }
  bool whole(BlockId block) const { return good_[block] == per_block_; }
  /// Of a sequence's tokens, `computed` by what has been answered, how many are still there, from
  /// the first one on. What has been given back (kNoBlock) nobody will look at.
  std::uint32_t tokens(std::span<const BlockId> blocks, std::uint32_t computed,
                       std::uint32_t groups = 1) const;

 private:
  std::uint32_t per_block_;
  std::vector<std::uint32_t> good_;
};

}  // namespace baton
