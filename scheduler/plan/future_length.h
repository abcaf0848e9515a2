// How much of a pool the running sequences can come to need together.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// A sequence as the estimate sees it.
struct Growth {
  std::uint32_t used = 0;  // tokens that it holds
  std::uint32_t left = 0;  // tokens that it may still get, one a step
};

/// Most blocks of `tokens_per_block` tokens that the sequences hold together at any time to come,
/// if each gets all that it may: sorted by what is left, most first, the peak is at the end of one
/// of them, when those with at least as much left hold `left` more tokens each (LightLLM's router:
/// the maximum over i of left_i * i + used_1 + ... + used_i). Exact for blocks of one token; for
/// larger ones an upper bound, by less than a block a sequence. Reorders `sequences`.
std::uint64_t peak_blocks(std::vector<Growth>& sequences, std::uint32_t tokens_per_block);

/// True if `request` can join those on `worker` and the pool holds them all, whatever lengths they
/// come to within their limits: then nobody is ever preempted there. Those that decode go in step,
/// as the formula has it; one that does not decode yet may begin at any time, and beams may fork at
/// any time, so these count with the most that they can need.
bool fits_to_the_end(const State& state, const Worker& worker, const Request& request);

}  // namespace baton
