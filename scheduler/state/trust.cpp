#include "scheduler/state/trust.h"

#include <algorithm>

#include "ipc/fault_points.h"

namespace baton {

void add_step_writes(std::span<const BlockId> blocks, std::uint32_t position, std::uint32_t tokens,
                     std::uint32_t per_block, std::vector<SlotWrite>& writes) {
  const std::uint32_t end = position + tokens;
  while (position < end) {
    const std::uint32_t block = position / per_block;
    writes.push_back({blocks[block], position % per_block});
    position = (block + 1) * per_block;
  }
}

Trust::Trust(std::uint32_t blocks, std::uint32_t per_block, std::span<const SlotWrite> unanswered)
    : per_block_(per_block), good_(blocks, per_block) {
  if (fault(Fault::trusted_too_early)) return;
  for (const SlotWrite& write : unanswered)
    good_[write.block] = std::min(good_[write.block], write.first);
}

std::uint32_t Trust::tokens(std::span<const BlockId> blocks, std::uint32_t computed) const {
  std::uint32_t trusted = 0;
  for (const BlockId block : blocks) {
    trusted += good_slots(block);
    if (trusted >= computed || !whole(block)) break;
  }
  return std::min(trusted, computed);
}

}  // namespace baton
