#include "scheduler/block_pool.h"

#include "ipc/fault_points.h"

namespace baton {

BlockPool::BlockPool(std::uint32_t total)
    : refs_(total, 0), source_pins_(total, 0), destination_pins_(total, 0), held_(total, 0) {
  free_.reserve(total);
  for (std::uint32_t i = total; i > 0; --i) free_.push_back(i - 1);
}

bool BlockPool::allocate(std::uint32_t count, std::vector<BlockId>& out) {
  if (count > free_.size()) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    const BlockId block = free_.back();
    free_.pop_back();
    refs_[block] = 1;
    out.push_back(block);
  }
  return true;
}

void BlockPool::release(BlockId block, StepId last_sent, StepId done) {
  if (--refs_[block] != 0) return;
  ++fenced_;
  if (fault(Fault::release_at_once) || last_sent <= done) {
    free_if_unpinned(block);
  } else {
    retiring_.push_back({last_sent, block});
  }
}

void BlockPool::retire(StepId done) {
  while (!retiring_.empty() && retiring_.front().last_sent <= done) {
    const BlockId block = retiring_.front().block;
    retiring_.pop_front();
    free_if_unpinned(block);
  }
}

void BlockPool::free_if_unpinned(BlockId block) {
  if (pinned(block) && !fault(Fault::release_at_once)) {
    held_[block] = 1;
    return;
  }
  --fenced_;
  free_.push_back(block);
}

void BlockPool::unpin_source(BlockId block) {
  --source_pins_[block];
  unpinned(block);
}

void BlockPool::unpin_destination(BlockId block) {
  --destination_pins_[block];
  unpinned(block);
}

void BlockPool::unpinned(BlockId block) {
  if (held_[block] == 0 || pinned(block)) return;
  held_[block] = 0;
  --fenced_;
  free_.push_back(block);
}

void BlockPool::reset() {
  retiring_.clear();
  free_.clear();
  fenced_ = 0;
  for (std::uint32_t i = total(); i > 0; --i) {
    const BlockId block = i - 1;
    refs_[block] = 0;
    destination_pins_[block] = 0;
    held_[block] = source_pins_[block] != 0 ? 1 : 0;
    if (held_[block] != 0) {
      ++fenced_;
    } else {
      free_.push_back(block);
    }
  }
}

}  // namespace baton
