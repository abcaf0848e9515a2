#include "scheduler/state/trust.h"

#include <algorithm>

#include "ipc/fault_points.h"

namespace baton {

void add_step_writes(std::span<const BlockId> blocks, std::uint32_t position, std::uint32_t tokens,
                     std::uint32_t per_block, std::vector<SlotWrite>& writes,
                     std::uint32_t groups) {
  const std::uint32_t end = position + tokens;
  while (position < end) {
    const std::uint32_t column = position / per_block;
    for (const BlockId block : blocks.subspan(std::size_t{column} * groups, groups))
      writes.push_back({block, position % per_block});
    position = (column + 1) * per_block;
  }
}

Trust::Trust(std::uint32_t blocks, std::uint32_t per_block, std::span<const SlotWrite> unanswered)
    : per_block_(per_block), good_(blocks, per_block) {
  if (fault(Fault::trusted_too_early)) return;
  for (const SlotWrite& write : unanswered)
    good_[write.block] = std::min(good_[write.block], write.first);
}

std::uint32_t Trust::tokens(std::span<const BlockId> blocks, std::uint32_t computed,
                            std::uint32_t groups) const {
  std::uint32_t trusted = 0;
  for (std::size_t at = 0; at < blocks.size(); at += groups) {
    std::uint32_t good = per_block_;
    for (const BlockId block : blocks.subspan(at, groups)) {
      if (block != kNoBlock) good = std::min(good, good_slots(block));
    }
    trusted += good;
    if (trusted >= computed || good < per_block_) break;
  }
  return std::min(trusted, computed);
}

}  // namespace baton
