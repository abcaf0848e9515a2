// Recounts the books from scratch: what the simulator checks after every event, and what
// `show kv` and the tests at idle are answered with.
#pragma once

#include <string>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// One part of a worker's pool, each figure counted on its own: total from the worker's Hello, free
/// by walking the free list, owned by walking the sequences, cached by asking the list of these,
/// fenced by walking the blocks that are none of it.
struct PoolAudit {
  std::string worker;
  AllocationId allocation = 0;
  bool host = false;  // the host part
  std::uint64_t total = 0;
  std::uint64_t free = 0;
  std::uint64_t owned = 0;
  std::uint64_t cached = 0;
  std::uint64_t fenced = 0;
};

/// A worker's pool, then its host part if it has one.
std::vector<PoolAudit> audit_pools(const State& state);

/// Everything that contradicts itself, one line each; empty when the books are in order.
std::vector<std::string> audit_state(const State& state);

}  // namespace baton
