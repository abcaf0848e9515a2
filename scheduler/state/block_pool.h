// The books of one worker's KV memory: who names each block, and when a released block may be
// handed out again. Integers only: no memory is touched here. Owned by the scheduler; nobody else
// chooses or frees a block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "ipc/kv_groups.h"
#include "ipc/messages.h"
#include "ipc/types.h"
#include "scheduler/prefix/prefix_index.h"
#include "scheduler/state/lru_list.h"
#include "scheduler/state/trust.h"

namespace baton {

/// Where a found beginning may lie, and how final it must be.
enum class Reach : std::uint8_t {
  pool,    // in the pool. For sequences of the worker itself: what a step in flight copies there is
           // found, too
  own,     // likewise, or in the host part
  soon,    // as own, with what steps in flight copy to the host part: it will be there
  others,  // in either part, for another worker to pull: every write to it has ended
};

/// What becomes of the cached blocks that are taken for others.
struct Saving {
  std::vector<CopyOp>* copies =
      nullptr;       // gets the copies to the host part; nullptr: all is forgotten
  bool all = false;  // false: only what somebody waits for, or a second one has named
};

/// What a block is. Beside it, pulls and copies in flight may pin it as their source or target: an
/// owned or retiring block as well, a held one by definition, a free or cached one never.
///
///   state     who names it            becomes           when
///   free      nobody                  owned             allocate() gives it to a sequence
///                                     held              a copy to the host part begins that fills
///                                     it
///   owned     sequences               retiring          release() of the last reference
///   retiring  steps in flight         held              retire(), if somebody pins it
///                                     cached            retire(), if the index knows what it holds
///                                     free              retire() otherwise
///   held      pulls and copies alone  owned             share()
///                                     cached, free      the last pin goes, as for retire()
///   cached    nobody; the index       owned             share()
///             knows what it holds     held              a pull or a copy reads it
///                                     free              forget(), or allocate() takes the longest
///                                     unused one
enum class BlockState : std::uint8_t { free, owned, retiring, held, cached };
constexpr std::size_t kBlockStates = 5;

/// A worker has a pool, whose blocks sequences name, and perhaps a host part, which keeps what the
/// pool forgets (ids from total() on). Retiring and held blocks are called fenced together: nobody
/// may be given them. owned + fenced + cached + free == total, always. The same holds for the host
/// part, where nothing is owned.
class BlockPool {
 public:
  BlockPool() = default;
  /// `groups`: of the layers whose blocks it has.
  explicit BlockPool(std::uint32_t total, std::uint32_t host_total = 0,
                     const KvGroups& groups = {});

  std::uint32_t total() const { return device_.total(); }
  std::uint32_t free_blocks() const { return device_.free_blocks(); }
  std::uint32_t fenced_blocks() const { return device_.fenced(); }
  std::uint32_t cached_blocks() const { return device_.count(BlockState::cached); }
  /// What allocate() can give.
  std::uint32_t available_blocks() const { return free_blocks() + cached_blocks(); }
  std::uint32_t owned_blocks() const { return device_.count(BlockState::owned); }
  BlockState state(BlockId block) const { return states_[block]; }
  /// Blocks that become free when the steps in flight have retired (no pull holds them).
  std::uint32_t retiring_blocks() const { return device_.count(BlockState::retiring); }

  /// Appends `count` blocks of the pool with one reference each to `out`, or does nothing and
  /// returns false. Takes cached blocks when no other is free. What they hold is forgotten, unless
  /// the host part knows it or, with `saving`, takes it: the copies must be sent with the next plan
  /// (see CopyOp), and nobody but a step may write to `out` until that plan's result is in.
  bool allocate(std::uint32_t count, std::vector<BlockId>& out, const Saving& saving = {});
  void add_reference(BlockId block) { ++refs_[block]; }

  // ---- prefix cache
  struct Match {
    std::vector<BlockId> blocks;  // of the first columns (TableShape), of either part
    std::uint32_t columns = 0;
    PrefixIndex::Node node = PrefixIndex::kRoot;
    std::uint32_t shared = 0;  // of these, owned or read by others: to share them takes nothing
  };
  /// The blocks that hold the tokens' beginning, whole columns of the table, `most` at the most:
  /// cached, owned, or fenced by nothing but somebody who reads them. Any other fenced block ends
  /// the match. Of a group with a window only those that the token behind the beginning looks at
  /// (the others are kNoBlock); where one of them is missing, a shorter beginning is taken.
  Match match(std::string_view salt, std::span<const Token> tokens, const TableShape& shape,
              std::uint32_t most, Reach reach = Reach::pool) const;
  /// One more reference to a block of the pool that match() has just found.
  void share(BlockId block);
  /// Enters an owned, full block whose content is final; returns the node of that content.
  PrefixIndex::Node remember(PrefixIndex::Node parent, std::string_view salt,
                             std::span<const Token> tokens, BlockId block,
                             std::uint32_t group = 0) {
    return index_.insert(parent, salt, tokens, block, group);
  }
  /// Likewise, the node of a content whose block the sequence has given back.
  PrefixIndex::Node pass(PrefixIndex::Node parent, std::string_view salt,
                         std::span<const Token> tokens) {
    return index_.pass(parent, salt, tokens);
  }
  bool remembers(BlockId block) const { return index_.holds(block); }
  /// `log` (null: nobody) is told of what a fresh pool comes to hold. It must outlive the pool.
  void tell(CacheLog* log) { index_.tell(log); }
  const PrefixIndex& index() const { return index_; }
  /// What the block holds, and a copy of it in the other part, is not found any more.
  void forget(BlockId block);

  // ---- host part. Each copy belongs to the next plan of the worker; both its blocks are pinned
  // until copied() is called for that plan.
  bool is_host(BlockId block) const { return block >= total(); }
  std::uint32_t host_total() const { return host_.total(); }
  std::uint32_t host_cached_blocks() const { return host_.count(BlockState::cached); }
  std::uint32_t host_free_blocks() const { return host_.free_blocks(); }
  std::uint32_t host_fenced_blocks() const { return host_.fenced(); }
  /// Copies what the host part does not know of the `oldest` blocks that would be taken next,
  /// `most` of them at the most, so that whoever takes them then need not wait or forget.
  void save_oldest(std::uint32_t oldest, std::uint32_t most, const Saving& saving);
  /// Somebody waits for what an owned block holds.
  void mark_wanted(BlockId block) { useful_[block] = 1; }
  /// Whoever is given blocks by allocate() after this does not get this one, which match() has just
  /// found in the host part. The pin passes on to the copy that load() makes.
  void hold(BlockId host) { pin_source(host); }
  /// Copies a held block to `block`, owned and fresh, which Reach::pool and Reach::own find at
  /// once.
  void load(BlockId host, BlockId block, std::vector<CopyOp>& loads);
  /// The copies of a plan whose result is in. To be saved is no use of a block: it stays as old as
  /// it was.
  void copied(std::span<const CopyOp> copies);

  /// Drops one reference. The last one fences the block until every step up to `last_sent` is done.
  void release(BlockId block, StepId last_sent, StepId done);
  /// Steps up to `done` have retired: blocks released before them become free unless a pull holds
  /// them.
  void retire(StepId done);

  /// A pull or a copy in flight names the block: as its source or target. A cached block that is
  /// read is fenced: nobody may be given it before the reader has ended.
  void pin_source(BlockId block);
  void pin_target(BlockId block) { ++target_pins_[block]; }
  void unpin_source(BlockId block);
  void unpin_target(BlockId block);

  /// A new term: no sequence, no step, no own pull. The pins of its copies must be gone. Only
  /// another worker's unanswered pull still fences.
  void reset();

  /// What is not wholly as it was is not found any more. Nobody's references or pins change.
  void distrust(const Trust& trust);

  /// References of a block, for recounts.
  std::uint32_t references(BlockId block) const { return refs_[block]; }
  std::uint32_t source_pins(BlockId block) const { return source_pins_[block]; }
  std::uint32_t target_pins(BlockId block) const { return target_pins_[block]; }
  const std::vector<BlockId>& free_list() const { return device_.free; }
  const std::vector<BlockId>& host_free_list() const { return host_.free; }
  /// In the list of cached blocks, which begins with the longest unused one; for recounts.
  bool is_listed_as_cached(BlockId block) const { return part_of(block).holds_idle(block); }

 private:
  struct Part {
    BlockId first = 0;
    std::vector<BlockId> free;
    LruList idle;  // the cached blocks, counted from `first`
    std::array<std::uint32_t, kBlockStates> counts{};

    Part(BlockId first_id, std::uint32_t total);
    std::uint32_t total() const { return idle.bound(); }
    std::uint32_t free_blocks() const { return static_cast<std::uint32_t>(free.size()); }
    std::uint32_t count(BlockState state) const { return counts[static_cast<std::size_t>(state)]; }
    std::uint32_t& count(BlockState state) { return counts[static_cast<std::size_t>(state)]; }
    std::uint32_t fenced() const { return count(BlockState::retiring) + count(BlockState::held); }
    bool holds_idle(BlockId block) const { return idle.holds(block - first); }
  };

  struct Retiring {
    StepId last_sent;
    BlockId block;
  };

  Part& part_of(BlockId block) { return is_host(block) ? host_ : device_; }
  const Part& part_of(BlockId block) const { return is_host(block) ? host_ : device_; }
  bool pinned(BlockId block) const { return source_pins_[block] != 0 || target_pins_[block] != 0; }
  /// Changes the state, the counts, and the list that the block is in. A free block leaves its list
  /// as the last one.
  void become(BlockId block, BlockState next);
  void hold_or_give_back(BlockId block);
  void give_back(BlockId block);
  void take_oldest(const Saving& saving);
  bool save(BlockId block, const Saving& saving);
  void unpinned(BlockId block);
  bool readable(BlockId block, Reach reach) const;
  Match match_windows(std::string_view salt, std::span<const Token> tokens, const TableShape& shape,
                      std::uint32_t most, Reach reach) const;
  BlockId found(const PrefixIndex::Place& place, Reach reach) const;

  std::vector<std::uint32_t> refs_;
  std::vector<std::uint32_t> source_pins_;
  std::vector<std::uint32_t> target_pins_;
  std::vector<BlockState> states_;
  std::vector<std::uint8_t>
      useful_;  // of cached blocks: marked, or found by somebody since they were computed
  PrefixIndex index_;
  Part device_{0, 0};
  Part host_{0, 0};
  std::deque<Retiring> retiring_;  // last_sent ascending
};

}  // namespace baton
