// Which rows of a step are planned as prompt chunks where the keys of chunks have to be gathered
// first, since they lie in several pools or are latent: there is room for so many. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace baton {

struct ChunkRow {
  std::int64_t tokens = 0;  // of the row
  std::int64_t keys = 0;    // those of its last token, itself among them
  std::int64_t least = 2;   // with fewer tokens it is no chunk
};

/// By row. Rows with the most tokens come first; one that finds no room, or has too few, is left to
/// the kernel for single tokens, which is slow but reads keys wherever they lie. `tile`: a row's
/// keys take up whole tiles.
std::vector<bool> choose_chunks(std::span<const ChunkRow> rows, std::int64_t tile,
                                std::int64_t most_keys);

}  // namespace baton
