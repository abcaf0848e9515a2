// The books of one KV pool: who names each block, and when a released block may be handed out again.
// Integers only: no memory is touched here. Owned by the scheduler; nobody else chooses or frees a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "ipc/types.h"
#include "scheduler/lru_list.h"
#include "scheduler/prefix_index.h"

namespace baton {

/// A block is
///  - owned: named by a sequence (reference count > 0);
///  - fenced: named by no sequence, but by a step or a pull in flight;
///  - cached: named by nobody, but the index knows what it holds; the longest unused one is taken when
///    no block is free;
///  - free: in the free list.
/// owned + fenced + cached + free == total, always.
class BlockPool {
 public:
  BlockPool() = default;
  explicit BlockPool(std::uint32_t total);

  std::uint32_t total() const { return static_cast<std::uint32_t>(refs_.size()); }
  std::uint32_t free_blocks() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t fenced_blocks() const { return fenced_; }
  std::uint32_t cached_blocks() const { return idle_.size(); }
  /// What allocate() can give.
  std::uint32_t available_blocks() const { return free_blocks() + cached_blocks(); }
  std::uint32_t owned_blocks() const { return total() - available_blocks() - fenced_; }
  /// Blocks that become free when the steps in flight have retired (no pull holds them).
  std::uint32_t retiring_blocks() const { return static_cast<std::uint32_t>(retiring_.size()); }

  /// Appends `count` blocks with one reference each to `out`, or does nothing and returns false. Takes
  /// cached blocks, and forgets what they hold, when no other is free.
  bool allocate(std::uint32_t count, std::vector<BlockId>& out);
  void add_reference(BlockId block) { ++refs_[block]; }

  // ---- prefix cache
  struct Match {
    std::vector<BlockId> blocks;  // the first ones of the tokens
    PrefixIndex::Node node = PrefixIndex::kRoot;
    std::uint32_t shared = 0;  // of these, owned or read by others: to share them takes nothing
  };
  /// The blocks that hold the tokens' beginning, whole blocks of `per_block` tokens, `most` at the most:
  /// cached, owned, or fenced by nothing but a pull that reads them. Any other fenced block ends the
  /// match.
  Match match(std::string_view salt, std::span<const Token> tokens, std::uint32_t per_block,
              std::uint32_t most) const;
  /// One more reference to a block that match() has just found.
  void share(BlockId block);
  /// Enters an owned, full block whose content is final; returns the node of that content.
  PrefixIndex::Node remember(PrefixIndex::Node parent, std::string_view salt,
                             std::span<const Token> tokens, BlockId block) {
    return index_.insert(parent, salt, tokens, block);
  }
  bool remembers(BlockId block) const { return index_.holds(block); }

  /// Drops one reference. The last one fences the block until every step up to `last_sent` is done.
  void release(BlockId block, StepId last_sent, StepId done);
  /// Steps up to `done` have retired: blocks released before them become free unless a pull holds them.
  void retire(StepId done);

  /// A pull in flight names the block: as its source (read by another worker) or destination. A cached
  /// block that is read is fenced: nobody may be given it before the pull has been answered.
  void pin_source(BlockId block);
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
  /// Cached blocks, longest unused first.
  const LruList& cached_list() const { return idle_; }

 private:
  bool pinned(BlockId block) const {
    return source_pins_[block] != 0 || destination_pins_[block] != 0;
  }
  void free_if_unpinned(BlockId block);
  void give_back(BlockId block);
  void forget_oldest();
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
  PrefixIndex index_;
  LruList idle_;  // the cached blocks
  std::deque<Retiring> retiring_;  // last_sent ascending
  std::uint32_t fenced_ = 0;
};

}  // namespace baton
