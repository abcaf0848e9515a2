// The books of one KV pool: who names each block, and when a released block may be handed out again.
// Integers only: no memory is touched here. Owned by the scheduler; nobody else chooses or frees a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// A block is
///  - owned: named by a sequence (reference count > 0);
///  - fenced: released, but a step or a pull in flight still names it;
///  - free: in the free list.
/// owned + fenced + free == total, always.
class BlockPool {
 public:
  BlockPool() = default;
  explicit BlockPool(std::uint32_t total);

  std::uint32_t total() const { return static_cast<std::uint32_t>(refs_.size()); }
  std::uint32_t free_blocks() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t fenced_blocks() const { return fenced_; }
  std::uint32_t owned_blocks() const { return total() - free_blocks() - fenced_; }
  /// Blocks that become free when the steps in flight have retired (no pull holds them).
  std::uint32_t retiring_blocks() const { return static_cast<std::uint32_t>(retiring_.size()); }

  /// Appends `count` blocks with one reference each to `out`, or does nothing and returns false.
  bool allocate(std::uint32_t count, std::vector<BlockId>& out);
  void add_reference(BlockId block) { ++refs_[block]; }

  /// Drops one reference. The last one fences the block until every step up to `last_sent` is done.
  void release(BlockId block, StepId last_sent, StepId done);
  /// Steps up to `done` have retired: blocks released before them become free unless a pull holds them.
  void retire(StepId done);

  /// A pull in flight names the block: as its source (read by another worker) or destination.
  void pin_source(BlockId block) { ++source_pins_[block]; }
  void pin_destination(BlockId block) { ++destination_pins_[block]; }
  void unpin_source(BlockId block);
  void unpin_destination(BlockId block);

  /// A new term: no sequence, no step, no own pull. Only another worker's unanswered pull still fences.
  void reset();

  /// References of a block, for recounts.
  std::uint32_t references(BlockId block) const { return refs_[block]; }
  std::uint32_t source_pins(BlockId block) const { return source_pins_[block]; }
  std::uint32_t destination_pins(BlockId block) const { return destination_pins_[block]; }
  const std::vector<BlockId>& free_list() const { return free_; }

 private:
  bool pinned(BlockId block) const {
    return source_pins_[block] != 0 || destination_pins_[block] != 0;
  }
  void free_if_unpinned(BlockId block);
  void unpinned(BlockId block);

  struct Retiring {
    StepId last_sent;
    BlockId block;
  };

  std::vector<std::uint32_t> refs_;
  std::vector<std::uint32_t> source_pins_;
  std::vector<std::uint32_t> destination_pins_;
  std::vector<std::uint8_t> held_;  // released and retired; only a pin keeps it from the free list
  std::vector<BlockId> free_;
  std::deque<Retiring> retiring_;  // last_sent ascending
  std::uint32_t fenced_ = 0;
};

}  // namespace baton
