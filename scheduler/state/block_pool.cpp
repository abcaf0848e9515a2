#include "scheduler/state/block_pool.h"

#include <algorithm>

#include "ipc/fault_points.h"

namespace baton {

BlockPool::Part::Part(BlockId first_id, std::uint32_t total) : first(first_id), idle(total) {
  free.reserve(total);
  for (std::uint32_t i = total; i > 0; --i) free.push_back(first + i - 1);
  count(BlockState::free) = total;
}

BlockPool::BlockPool(std::uint32_t total, std::uint32_t host_total, const KvGroups& groups)
    : refs_(total + host_total, 0),
      source_pins_(total + host_total, 0),
      target_pins_(total + host_total, 0),
      states_(total + host_total, BlockState::free),
      useful_(total, 0),
      device_(0, total),
      host_(total, host_total) {
  // Elsewhere a chain ends with the block of the group that sees everything.
  if (groups.windows_everywhere()) {
    index_.keep_paths(PrefixIndex::kMostBare + 4 * (std::size_t{total} + host_total));
  }
}

void BlockPool::become(BlockId block, BlockState next) {
  Part& part = part_of(block);
  BlockState& state = states_[block];
  if (state == BlockState::free) part.free.pop_back();
  if (state == BlockState::cached) part.idle.erase(block - part.first);
  --part.count(state);
  state = next;
  ++part.count(next);
  if (next == BlockState::free) part.free.push_back(block);
  if (next == BlockState::cached) part.idle.push_newest(block - part.first);
}

bool BlockPool::allocate(std::uint32_t count, std::vector<BlockId>& out, const Saving& saving) {
  if (count > available_blocks()) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (device_.free.empty()) take_oldest(saving);
    const BlockId block = device_.free.back();
    become(block, BlockState::owned);
    refs_[block] = 1;
    useful_[block] = 0;
    out.push_back(block);
  }
  return true;
}

/// Frees the longest unused block.
void BlockPool::take_oldest(const Saving& saving) {
  const BlockId block = device_.idle.oldest();
  become(block, BlockState::free);
  const BlockId host = index_.place(block).host;
  if (host == kNoBlock) {
    save(block, saving);
  } else if (host_.holds_idle(host)) {
    // From here on it is the only copy, and as new as the newest that came here by being forgotten.
    host_.idle.erase(host - host_.first);
    host_.idle.push_newest(host - host_.first);
  }
  index_.forget(block);
}

/// A copy to a block of the host part, the longest unused if none is free. False: it is not worth
/// one, or every one is in use.
bool BlockPool::save(BlockId block, const Saving& saving) {
  if (saving.copies == nullptr || (!saving.all && useful_[block] == 0)) return false;
  if (host_.free.empty()) {
    if (host_.idle.size() == 0) return false;
    const BlockId oldest = host_.first + host_.idle.oldest();
    index_.forget(oldest);
    become(oldest, BlockState::free);
  }
  const BlockId host = host_.free.back();
  become(host, BlockState::held);
  index_.copy_to_host(block, host);
  pin_target(host);
  if (fault(Fault::copied_not_held)) {
    ++source_pins_[block];
  } else {
    pin_source(block);
  }
  saving.copies->push_back({block, host});
  return true;
}

void BlockPool::save_oldest(std::uint32_t oldest, std::uint32_t most, const Saving& saving) {
  BlockId block = device_.idle.oldest();
  for (std::uint32_t i = 0; i < oldest && most > 0 && block != device_.idle.bound(); ++i) {
    const BlockId next = device_.idle.after(block);
    const bool wanted = saving.all || useful_[block] != 0;
    if (wanted && index_.place(block).host == kNoBlock && save(block, saving)) --most;
    block = next;
  }
}

void BlockPool::load(BlockId host, BlockId block, std::vector<CopyOp>& loads) {
  // Somebody may have computed the same meanwhile; then this copy serves one sequence alone.
  if (index_.place(host).block == kNoBlock) index_.copy_from_host(host, block);
  pin_target(block);
  useful_[block] = 1;
  loads.push_back({host, block});
}

void BlockPool::copied(std::span<const CopyOp> copies) {
  // A chain is saved from its end on, and loaded from its beginning on. In either part, the end is
  // to be taken first.
  for (const CopyOp& copy : copies) {
    if (is_host(copy.to)) unpin_target(copy.to);
  }
  for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy) {
    unpin_source(copy->from);
    if (!is_host(copy->to)) {
      unpin_target(copy->to);
      continue;
    }
    const bool same = index_.holds(copy->from) && index_.place(copy->from).host ==
                                                      copy->to;  // it was given to nobody meanwhile
    if (!same || !device_.holds_idle(copy->from)) continue;
    device_.idle.erase(copy->from);
    device_.idle.push_oldest(copy->from);
  }
}

bool BlockPool::readable(BlockId block, Reach reach) const {
  if (block == kNoBlock) return false;
  if (reach == Reach::pool && is_host(block)) return false;
  if (states_[block] == BlockState::free || states_[block] == BlockState::retiring) return false;
  const bool unfinished = target_pins_[block] != 0;
  if (!unfinished || reach == Reach::soon || fault(Fault::copy_not_awaited)) return true;
  return reach != Reach::others && !is_host(block);
}

/// Whichever part has it; kNoBlock: neither.
BlockId BlockPool::found(const PrefixIndex::Place& place, Reach reach) const {
  if (readable(place.block, reach)) return place.block;
  return readable(place.host, reach) ? place.host : kNoBlock;
}

BlockPool::Match BlockPool::match(std::string_view salt, std::span<const Token> tokens,
                                  const TableShape& shape, std::uint32_t most, Reach reach) const {
  if (!shape.plain()) return match_windows(salt, tokens, shape, most, reach);
  Match match;
  const std::uint32_t per_block = shape.per_block;
  for (std::size_t end = per_block; end <= tokens.size() && match.columns < most;
       end += per_block) {
    const PrefixIndex::Entry* entry =
        index_.find(match.node, salt, tokens.subspan(end - per_block, per_block));
    if (entry == nullptr) break;
    const BlockId block = found(*entry, reach);
    if (block == kNoBlock) break;
    match.blocks.push_back(block);
    ++match.columns;
    match.node = entry->node;
    match.shared += is_host(block) || states_[block] == BlockState::cached ? 0 : 1;
  }
  return match;
}

/// Down the chain as far as it goes, counting for each group how many blocks without a gap lie
/// before the end; the best end is the last one where every group has all that its window reaches.
BlockPool::Match BlockPool::match_windows(std::string_view salt, std::span<const Token> tokens,
                                          const TableShape& shape, std::uint32_t most,
                                          Reach reach) const {
  const std::uint32_t per_block = shape.per_block;
  const std::uint32_t groups = shape.groups.count;
  Match match;
  std::array<std::uint32_t, kMaxKvGroups> run{};
  PrefixIndex::Node node = PrefixIndex::kRoot;
  std::vector<BlockId> seen;
  for (std::uint32_t column = 0; column < most; ++column) {
    const std::size_t first = std::size_t{column} * per_block;
    if (first + per_block > tokens.size()) break;
    const PrefixIndex::Entry* entry = index_.find(node, salt, tokens.subspan(first, per_block));
    if (entry == nullptr) break;
    node = entry->node;
    bool whole = true;
    bool goes_on = true;
    for (std::uint32_t g = 0; g < groups; ++g) {
      seen.push_back(found(entry->at(g), reach));
      run[g] = seen.back() == kNoBlock ? 0 : run[g] + 1;
      const bool window = shape.groups.windows[g] != 0;
      const bool has = run[g] >= column + 1 - shape.first(g, (column + 1) * per_block);
      whole = whole && (has || (window && fault(Fault::hit_without_window)));
      goes_on = goes_on && (has || window);
    }
    if (!goes_on) break;
    if (!whole) continue;
    match.columns = column + 1;
    match.node = node;
  }
  seen.resize(std::size_t{match.columns} * groups);
  for (std::uint32_t column = 0; column < match.columns; ++column) {
    for (std::uint32_t g = 0; g < groups; ++g) {
      BlockId& block = seen[std::size_t{column} * groups + g];
      if (column < shape.first(g, match.columns * per_block)) block = kNoBlock;
      if (block == kNoBlock) continue;
      match.shared += is_host(block) || states_[block] == BlockState::cached ? 0 : 1;
    }
  }
  match.blocks = std::move(seen);
  return match;
}

void BlockPool::share(BlockId block) {
  useful_[block] = 1;
  if (refs_[block]++ == 0) become(block, BlockState::owned);
}

void BlockPool::forget(BlockId block) {
  if (!index_.holds(block)) return;
  const PrefixIndex::Place place = index_.place(block);
  for (const BlockId copy : {place.block, place.host}) {
    if (copy == kNoBlock) continue;
    index_.forget(copy);  // the last one takes the entry with it
    if (states_[copy] == BlockState::cached) become(copy, BlockState::free);
  }
}

void BlockPool::release(BlockId block, StepId last_sent, StepId done) {
  if (--refs_[block] != 0) return;
  become(block, BlockState::retiring);
  if (fault(Fault::release_at_once) || last_sent <= done) {
    hold_or_give_back(block);
  } else {
    retiring_.push_back({last_sent, block});
  }
}

void BlockPool::retire(StepId done) {
  while (!retiring_.empty() && retiring_.front().last_sent <= done) {
    const BlockId block = retiring_.front().block;
    retiring_.pop_front();
    hold_or_give_back(block);
  }
}

void BlockPool::hold_or_give_back(BlockId block) {
  if (pinned(block) && !fault(Fault::release_at_once)) {
    become(block, BlockState::held);
  } else {
    give_back(block);
  }
}

void BlockPool::give_back(BlockId block) {
  become(block, index_.holds(block) ? BlockState::cached : BlockState::free);
}

void BlockPool::pin_source(BlockId block) {
  ++source_pins_[block];
  if (states_[block] != BlockState::cached || fault(Fault::prefix_not_held)) return;
  become(block, BlockState::held);
  if (!is_host(block)) useful_[block] = 1;  // found by another worker, or saved at this moment
}

void BlockPool::unpin_source(BlockId block) {
  --source_pins_[block];
  unpinned(block);
}

void BlockPool::unpin_target(BlockId block) {
  --target_pins_[block];
  unpinned(block);
}

void BlockPool::unpinned(BlockId block) {
  if (states_[block] == BlockState::held && !pinned(block)) give_back(block);
}

void BlockPool::distrust(const Trust& trust) {
  for (BlockId block = 0; block < states_.size(); ++block) {
    if (trust.whole(block) || !index_.holds(block)) continue;
    index_.forget(block);
    if (states_[block] == BlockState::cached) become(block, BlockState::free);
  }
}

void BlockPool::reset() {
  retiring_.clear();
  index_.clear();
  for (Part* part : {&device_, &host_}) {
    part->free.clear();
    part->idle.reset(part->total());
    part->counts = {};
    for (std::uint32_t i = part->total(); i > 0; --i) {
      const BlockId block = part->first + i - 1;
      refs_[block] = 0;
      target_pins_[block] = 0;
      states_[block] = source_pins_[block] != 0 ? BlockState::held : BlockState::free;
      ++part->count(states_[block]);
      if (states_[block] == BlockState::free) part->free.push_back(block);
    }
  }
}

}  // namespace baton
