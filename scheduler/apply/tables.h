// Tables of blocks: what a sequence is given at its start, what it grows by, and what the windows
// of its groups of layers give back (docs/adr/0020). Where layers have one group without a window,
// a table is a list that grows at its end.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// Tokens of a sequence that its first blocks are for: it is computed from `from` on, those before
/// are found or pulled, and it has room for `to` one day.
struct StartSpan {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

/// Blocks that must be available for that start: what is found and in use (`prefix`) is shared and
/// takes none, unless a window leaves it behind on the way.
std::uint32_t blocks_to_take(const Store& store, StartSpan span, const BlockPool::Match& prefix);
/// The start of the sequence's table; the blocks are available. What is found is shared, what the
/// host part holds of it is copied into fresh blocks.
void start_table(Store& store, Sequence& sequence, StartSpan span, const BlockPool::Match& prefix,
                 const Saving& saving);

/// Columns that a group of the sequence has, or has had, blocks for.
std::uint32_t filled_columns(const Store& store, const Sequence& sequence, std::uint32_t group);
/// Blocks that its table lacks for `tokens` tokens.
std::uint32_t missing_blocks(const Store& store, const Sequence& sequence, std::uint32_t tokens);
/// ... for its next one.
inline std::uint32_t growth(const Store& store, const Sequence& sequence) {
  return missing_blocks(store, sequence, sequence.scheduled + 1);
}
/// Takes them; they are available. With `plan`, its worker is told.
void grow_table(State& state, Sequence& sequence, std::uint32_t tokens, StepPlan* plan);

/// What no token of the sequence will look at any more is released, and stays cached. Until a step
/// has ended, its tokens may have to be computed again: what that would look at is kept.
void give_back_behind(State& state, Sequence& sequence);
/// Blocks that will be given back when the steps in flight have ended, and then be free.
std::uint32_t promised_blocks(const Store& store, const Sequence& sequence);

}  // namespace baton
