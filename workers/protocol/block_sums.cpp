#include "workers/protocol/block_sums.h"

#include <algorithm>
#include <cstring>

namespace baton {

std::uint64_t checksum(const std::byte* block, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes / sizeof sum; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, block + i * sizeof word, sizeof word);
    sum += checksum_word(word, i);
  }
  return sum;
}

std::vector<BlockId> written_blocks(const RunStep& step, std::uint32_t tokens_per_block,
                                    std::uint32_t groups) {
  std::vector<BlockId> blocks;
  for (const CopyOp& copy : step.copies) blocks.push_back(copy.to);
  for (const BatchRow& row : step.rows) {
    if (row.tokens.empty()) continue;
    const auto first = static_cast<std::size_t>(row.position) / tokens_per_block;
    const auto last =
        (static_cast<std::size_t>(row.position) + row.tokens.size() - 1) / tokens_per_block;
    const std::size_t end = std::min((last + 1) * groups, row.blocks.size());
    for (std::size_t i = first * groups; i < end; ++i) blocks.push_back(row.blocks[i]);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

}  // namespace baton
