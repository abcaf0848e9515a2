#include "workers/execute/chunk_choice.h"

#include <algorithm>
#include <numeric>

namespace baton {

std::vector<bool> choose_chunks(std::span<const ChunkRow> rows, std::int64_t tile,
                                std::int64_t most_keys) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rows[a].tokens > rows[b].tokens; });
  std::vector<bool> chosen(rows.size(), false);
  for (const std::size_t i : order) {
    const std::int64_t room = (rows[i].keys + tile - 1) / tile * tile;
    if (rows[i].tokens < rows[i].least || room > most_keys) continue;
    most_keys -= room;
    chosen[i] = true;
  }
  return chosen;
}

}  // namespace baton
