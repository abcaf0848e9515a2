// Copies of whole KV blocks: one kernel for a list of blocks, whatever pool they come from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/types.h"
#include "workers/pool/head_ranges.h"

namespace baton::cuda {

/// Both parts of a pool, as the device addresses them: block ids below `device_blocks` count from
/// `device`, those from there on, less device_blocks, from `host` (page-locked memory).
struct PoolParts {
  PoolParts(std::byte* device_part, std::byte* host_part = nullptr,
            std::uint32_t blocks = 0xFFFFFFFF)
      : device(device_part), host(host_part), device_blocks(blocks) {}
  std::byte* device;
  std::byte* host;
  std::uint32_t device_blocks;
};
/// The same of a pool that is only read.
struct ConstPoolParts {
  ConstPoolParts(const std::byte* device_part, const std::byte* host_part = nullptr,
                 std::uint32_t blocks = 0xFFFFFFFF)
      : device(device_part), host(host_part), device_blocks(blocks) {}
  ConstPoolParts(const PoolParts& p) : ConstPoolParts(p.device, p.host, p.device_blocks) {}
  const std::byte* device;
  const std::byte* host;
  std::uint32_t device_blocks;
};

/// Block to[i] of `to_pool` = block from[i] of `from_pool` for i < n, blocks of block_bytes (a
/// multiple of 16). `from_pool` may be another process's pool on this or another GPU; the two id
/// lists are device memory. A pair may not name a block that another pair writes. `max_ctas` bounds
/// the multiprocessors taken from the running step. Queues on `stream`.
void copy_blocks(const PoolParts& to_pool, const ConstPoolParts& from_pool, const std::uint32_t* to,
                 const std::uint32_t* from, int n, std::size_t block_bytes, int max_ctas,
                 Stream stream);

/// The heads of a range (strides in bytes, all numbers multiples of 16) as copy_blocks() copies
/// blocks, of device parts alone.
void copy_heads(std::byte* to_pool, const std::byte* from_pool, const std::uint32_t* to,
                const std::uint32_t* from, int n, const HeadRange& range, int max_ctas,
                Stream stream);

/// sums[i] = the sum of checksum_word() (workers/protocol/block_sums.h) over block ids[i] (blocks
/// of up to 4 GiB).
void checksum_blocks(const ConstPoolParts& pool, const std::uint32_t* ids, int n,
                     std::size_t block_bytes, std::uint64_t* sums, Stream stream);

}  // namespace baton::cuda
