// Checksums of KV blocks, on the host; the same as workers/cuda/blocks.h has on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "workers/protocol/step_batch.h"

namespace baton {

/// What one 8-byte word adds to the checksum of its block: position-dependent, so that exchanged
/// words show. Any order of adding gives the same sum. (Mixing as in SplitMix64, Steele and others,
/// 2014.)
constexpr std::uint64_t checksum_word(std::uint64_t word, std::uint64_t index) {
  std::uint64_t x = (word ^ (index + 1) * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 32)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 29);
}

/// Of `bytes` bytes, a multiple of 8.
std::uint64_t checksum(const std::byte* block, std::size_t bytes);

/// The blocks that a step writes to, each once: by its copies, and by its rows' keys and values.
std::vector<BlockId> written_blocks(const RunStep& step, std::uint32_t tokens_per_block,
                                    std::uint32_t groups = 1);

}  // namespace baton
