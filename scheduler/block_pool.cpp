#include "scheduler/block_pool.h"

#include "ipc/fault_points.h"

namespace baton {

BlockPool::BlockPool(std::uint32_t total)
    : refs_(total, 0),
      source_pins_(total, 0),
      destination_pins_(total, 0),
      held_(total, 0),
      idle_(total) {
  free_.reserve(total);
  for (std::uint32_t i = total; i > 0; --i) free_.push_back(i - 1);
}

bool BlockPool::allocate(std::uint32_t count, std::vector<BlockId>& out) {
  if (count > available_blocks()) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (free_.empty()) forget_oldest();
    const BlockId block = free_.back();
    free_.pop_back();
    refs_[block] = 1;
    out.push_back(block);
  }
  return true;
}

void BlockPool::forget_oldest() {
  const BlockId block = idle_.oldest();
  idle_.erase(block);
  index_.forget(block);
  free_.push_back(block);
}

BlockPool::Match BlockPool::match(std::string_view salt, std::span<const Token> tokens,
                                  std::uint32_t per_block, std::uint32_t most) const {
  Match match;
  for (std::size_t end = per_block; end <= tokens.size() && match.blocks.size() < most;
       end += per_block) {
    const PrefixIndex::Entry* entry =
        index_.find(match.node, salt, tokens.subspan(end - per_block, per_block));
    if (entry == nullptr) break;
    const bool idle = idle_.holds(entry->block);
    if (!idle && refs_[entry->block] == 0 && held_[entry->block] == 0) break;
    match.blocks.push_back(entry->block);
    match.node = entry->node;
    match.shared += idle ? 0 : 1;
  }
  return match;
}

void BlockPool::share(BlockId block) {
  if (refs_[block]++ != 0) return;
  if (held_[block] == 0) return idle_.erase(block);
  held_[block] = 0;
  --fenced_;
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
  give_back(block);
}

void BlockPool::give_back(BlockId block) {
  if (index_.holds(block)) {
    idle_.push_newest(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::pin_source(BlockId block) {
  ++source_pins_[block];
  if (!idle_.holds(block) || fault(Fault::prefix_not_held)) return;
  idle_.erase(block);
  held_[block] = 1;
  ++fenced_;
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
  give_back(block);
}

void BlockPool::reset() {
  retiring_.clear();
  free_.clear();
  index_.clear();
  idle_.reset(total());
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
