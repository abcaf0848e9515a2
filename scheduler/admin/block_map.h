// A pool's blocks as a short text for people's eyes: a letter for each state, runs counted, and
// large pools with several blocks to a cell. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ipc/types.h"
#include "scheduler/state/block_pool.h"

namespace baton {

/// f: free, c: cached, o: owned, x: fenced (retiring or held); p: most of the cell's blocks are
/// something else, but some are owned.
char cell_letter(std::uint32_t free, std::uint32_t cached, std::uint32_t owned,
                 std::uint32_t fenced);

/// "12fc3o": twelve cells that are free, one that is cached, three that are owned. Never longer
/// than two characters a cell.
class RunLengthText {
 public:
  void add(char letter);
  /// The text so far; begins anew.
  std::string take();

 private:
  void close_run();

  std::string text_;
  char letter_ = 0;
  std::uint32_t run_ = 0;
};

/// So many blocks share a cell that a part of `total` blocks has `most_cells` at the most.
std::uint32_t blocks_per_cell(std::uint32_t total, std::uint32_t most_cells);

/// The pool of a worker, or its host part.
std::string block_map(const BlockPool& pool, bool host, std::uint32_t per_cell);

/// The cells of these blocks, which are counted from `first`, ascending: "3-7,12". At most
/// `most_ranges`; the rest is left out.
std::string cell_ranges(std::span<const BlockId> blocks, BlockId first, std::uint32_t per_cell,
                        std::size_t most_ranges);

}  // namespace baton
