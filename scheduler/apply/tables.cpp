#include "scheduler/apply/tables.h"

#include <algorithm>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/plan/swap.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

namespace {

/// The blocks of `prefix` that a start needs: windows may have left some behind.
template <typename F>
void each_found(const TableShape& shape, StartSpan span, const BlockPool::Match& prefix, F&& f) {
  const std::uint32_t groups = shape.groups.count;
  for (std::size_t at = 0; at < prefix.blocks.size(); ++at) {
    const auto column = static_cast<std::uint32_t>(at / groups);
    const auto group = static_cast<std::uint32_t>(at % groups);
    if (prefix.blocks[at] != kNoBlock && column >= shape.first(group, span.from))
      f(at, prefix.blocks[at]);
  }
}

}  // namespace

std::uint32_t blocks_to_take(const Store& store, StartSpan span, const BlockPool::Match& prefix) {
  const std::uint32_t blocks = store.shape.start_blocks(span.from, span.to);
  if (store.shape.plain()) return blocks - prefix.shared;  // all of it is needed
  // Of a window that moves on, what is shared with others now will be left to them, and its own
  // blocks take that place: it must have room for those, or it would get nowhere.
  const std::uint32_t groups = store.shape.groups.count;
  const auto moves_on = [&](std::uint32_t group) {
    return store.shape.start_end(group, span.from, span.to) < store.shape.columns(span.to);
  };
  std::uint32_t shared = 0;
  each_found(store.shape, span, prefix, [&](std::size_t at, BlockId block) {
    const bool used = !store.pool.is_host(block) && store.pool.state(block) != BlockState::cached;
    shared += used && !moves_on(static_cast<std::uint32_t>(at % groups)) ? 1 : 0;
  });
  return blocks - shared;
}

void start_table(Store& store, Sequence& sequence, StartSpan span, const BlockPool::Match& prefix,
                 const Saving& saving) {
  const TableShape& shape = store.shape;
  const std::uint32_t groups = shape.groups.count;
  std::uint32_t columns = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    sequence.filled[g] = std::max(prefix.columns, shape.start_end(g, span.from, span.to));
    columns = std::max(columns, sequence.filled[g]);
  }
  std::vector<BlockId>& table = sequence.tail().blocks;
  table.reserve((std::size_t{columns} + 8) * groups);
  table.resize(std::size_t{columns} * groups, kNoBlock);
  // What is found first: what is allocated may push idle blocks out of the cache.
  each_found(shape, span, prefix, [&](std::size_t at, BlockId block) {
    store.pool.is_host(block) ? store.pool.hold(block) : store.pool.share(block);
    table[at] = block;
  });
  std::vector<BlockId> fresh;
  for (BlockId& block : table) {
    if (block == kNoBlock || !store.pool.is_host(block)) continue;
    fresh.clear();
    store.pool.allocate(1, fresh, saving);
    store.pool.load(block, fresh.front(), store.copies);
    block = fresh.front();
  }
  for (std::uint32_t column = prefix.columns; column < columns; ++column) {
    for (std::uint32_t g = 0; g < groups; ++g) {
      if (column < shape.first(g, span.from) || column >= sequence.filled[g]) continue;
      fresh.clear();
      store.pool.allocate(1, fresh, saving);
      table[std::size_t{column} * groups + g] = fresh.front();
    }
  }
}

std::uint32_t filled_columns(const Store& store, const Sequence& sequence, std::uint32_t group) {
  if (store.shape.plain()) return sequence.capacity(store.shape.per_block) / store.shape.per_block;
  return sequence.filled[group];
}

std::uint32_t missing_blocks(const Store& store, const Sequence& sequence, std::uint32_t tokens) {
  const std::uint32_t columns = store.shape.columns(tokens);
  std::uint32_t missing = 0;
  for (std::uint32_t g = 0; g < store.shape.groups.count; ++g)
    missing += columns - std::min(columns, filled_columns(store, sequence, g));
  return missing;
}

void grow_table(State& state, Sequence& sequence, std::uint32_t tokens, StepPlan* plan) {
  Worker& w = state.workers[sequence.worker];
  const std::uint32_t groups = w.store.shape.groups.count;
  const std::uint32_t columns = w.store.shape.columns(tokens);
  std::vector<BlockId>& blocks = sequence.tail().blocks;
  // Those before it lie in other stores, of which only sequences of one group have any.
  const std::uint32_t first = sequence.tail().first_token / w.store.shape.per_block;
  std::vector<BlockId> fresh;
  for (std::uint32_t g = 0; g < groups; ++g) {
    for (std::uint32_t c = filled_columns(w.store, sequence, g); c < columns; ++c) {
      fresh.clear();
      w.store.pool.allocate(1, fresh, saving_of(state, w));
      const std::size_t column = c - first;
      if (blocks.size() < (column + 1) * groups) blocks.resize((column + 1) * groups, kNoBlock);
      blocks[column * groups + g] = fresh.front();
      sequence.filled[g] = c + 1;
      if (plan == nullptr) continue;
      plan->grow_sequences.push_back(sequence.id);
      plan->grow_blocks.push_back(fresh.front());
      if (groups > 1) plan->grow_groups.push_back(g);
    }
  }
}

void give_back_behind(State& state, Sequence& sequence) {
  Worker& w = state.workers[sequence.worker];
  const TableShape& shape = w.store.shape;
  if (shape.plain() || sequence.retiring || sequence.is_target) return;
  std::vector<BlockId>& blocks = sequence.tail().blocks;
  bool remembered = false;
  const std::uint32_t early = fault(Fault::given_back_too_early) ? shape.per_block : 0;
  for (std::uint32_t g = 0; g < shape.groups.count; ++g) {
    if (shape.groups.windows[g] == 0) continue;
    for (std::uint32_t c = shape.first(g, sequence.computed + early); c > 0; --c) {
      BlockId& block = blocks[std::size_t{c - 1} * shape.groups.count + g];
      if (block == kNoBlock) break;  // nor is there one before it
      if (!std::exchange(remembered, true)) remember_prefix(state, sequence);
      w.store.pool.release(block, w.compute.sent, w.compute.done);
      block = kNoBlock;
    }
  }
}

std::uint32_t promised_blocks(const Store& store, const Sequence& sequence) {
  const TableShape& shape = store.shape;
  if (shape.plain() || sequence.retiring || sequence.is_target) return 0;
  const std::vector<BlockId>& blocks = sequence.tail().blocks;
  std::uint32_t promised = 0;
  for (std::uint32_t g = 0; g < shape.groups.count; ++g) {
    const std::uint32_t end = shape.first(g, sequence.scheduled);
    for (std::uint32_t c = shape.first(g, sequence.computed); c < end; ++c) {
      const std::size_t at = std::size_t{c} * shape.groups.count + g;
      const bool own = at < blocks.size() && blocks[at] != kNoBlock;
      promised += own && store.pool.references(blocks[at]) == 1 ? 1 : 0;
    }
  }
  return promised;
}

}  // namespace baton
