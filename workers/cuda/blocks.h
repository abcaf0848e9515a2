// Copies of whole KV blocks: one kernel for a list of blocks, whatever pool they come from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// to_pool[to[i]] = from_pool[from[i]] for i < n, blocks of block_bytes (a multiple of 16). `from_pool`
/// may be another process's pool on this or another GPU; the two id lists are device memory. A pair may
/// not name a block that another pair writes. `max_ctas` bounds the multiprocessors taken from the
/// running step. Queues on `stream`.
void copy_blocks(std::byte* to_pool, const std::byte* from_pool, const std::uint32_t* to,
                 const std::uint32_t* from, int n, std::size_t block_bytes, int max_ctas,
                 Stream stream);

/// What one 8-byte word adds to the checksum of its block: position-dependent, so that exchanged
/// words show. Any order of adding gives the same sum. (Mixing as in SplitMix64, Steele and others,
/// 2014.)
constexpr std::uint64_t checksum_word(std::uint64_t word, std::uint64_t index) {
  std::uint64_t x = (word ^ (index + 1) * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 32)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 29);
}

/// sums[i] = the sum of checksum_word() over block ids[i] (blocks of up to 4 GiB).
void checksum_blocks(const std::byte* pool, const std::uint32_t* ids, int n,
                     std::size_t block_bytes, std::uint64_t* sums, Stream stream);

}  // namespace baton::cuda
