// How much of the host's memory a worker on CPUs may take, and what its KV pool gets of that. What
// cannot fit is refused with the arithmetic, before the system kills somebody for it.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/status.h"

namespace baton {

/// Bytes that processes can still take: MemAvailable, or less where a control group's limit is
/// nearer. 0: not known.
std::uint64_t free_host_memory();

/// The same from the texts of /proc/meminfo and of a cgroup v2's memory.max, memory.current and
/// memory.stat; empty: there is no such file.
std::uint64_t free_memory(const std::string& meminfo, const std::string& group_max,
                          const std::string& group_current, const std::string& group_stat);

/// Bytes free in /dev/shm; 0: not known.
std::uint64_t free_shared_memory();

/// What a worker needs and what there is, in bytes.
struct MemoryAsk {
  std::string dtype;  // of the weights
  std::uint64_t weights = 0;
  std::uint64_t loading = 0;           // beside the weights, while they are loaded
  std::uint64_t block_bytes = 0;       // of one KV block
  std::uint64_t context_bytes = 0;     // KV of the longest sequence
  std::uint64_t pool_blocks = 0;       // as configured; 0: not
  std::uint64_t pool_mib = 0;          // likewise
  std::uint64_t host_pool_blocks = 0;  // of the pool's host part, which is always as configured
  std::uint64_t host_pool_mib = 0;     // likewise; 0 as well: there is none
  std::uint64_t memory_mib = 0;        // likewise
  double fraction = 0.9;               // of `free`, without memory_mib
  std::uint64_t sharers = 1;      // workers that are about to take memory here, this one included
  std::uint64_t free = 0;         // 0: not known, nothing is refused
  std::uint64_t shared_free = 0;  // of /dev/shm; 0: not known
};

/// Bytes of the pool: what the configuration says, or room for two contexts, 256 MiB to 4 GiB, at
/// most half of what the weights leave. The error is ErrorCode::invalid_argument.
Result<std::uint64_t> plan_host_pool(const MemoryAsk& ask);

/// Whether a worker on a GPU may take so many bytes for its pool's host part, which is page-locked:
/// a tenth of what is free stays so, and `sharers` workers that are about to do so, this one
/// included, divide the rest. The error may pass when a dead worker's memory has been given back.
Status check_host_part(std::uint64_t bytes, std::uint64_t free, std::uint64_t sharers);

}  // namespace baton
