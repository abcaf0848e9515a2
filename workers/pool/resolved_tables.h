// Tables of rows whose first blocks lie in other workers' pools, with the ids that the device's
// kernels know them by. Both kinds of pools (pool_window.h, pool_numbers.h) call block b of a pool
// `first` + b, and differ in what the firsts are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <vector>

#include "ipc/types.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// Appends the row's ids. `places`: by allocation, what has `first` and how many `blocks` there are.
/// False: a pool is not there, or has no such block.
template <typename Place>
bool resolve_row(const BatchRow& row, const std::map<AllocationId, Place>& places,
                 std::vector<BlockId>& ids) {
  std::size_t at = 0;
  for (const TablePart& part : row.before) {
    const auto it = places.find(part.allocation);
    if (it == places.end()) return false;
    for (std::uint32_t i = 0; i < part.blocks && at < row.blocks.size(); ++i, ++at) {
      if (row.blocks[at] >= it->second.blocks) return false;
      ids.push_back(it->second.first + row.blocks[at]);
    }
  }
  ids.insert(ids.end(), row.blocks.begin() + static_cast<std::ptrdiff_t>(at), row.blocks.end());
  return true;
}

/// Those of all rows; `tables` may have more than the step's. Throws std::logic_error where a pool
/// is not there: the protocol core has seen to it that each is, and stays for this step.
template <typename Pools>
void resolve_rows(const RunStep& step, const Pools& pools,
                  std::vector<std::vector<BlockId>>& tables) {
  if (tables.size() < step.rows.size()) tables.resize(step.rows.size());
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    tables[i].clear();
    if (!pools.resolve(step.rows[i], tables[i]))
      throw std::logic_error("a row names blocks of a pool that is not mapped");
  }
}

}  // namespace baton
