// What baton-bench-policies sends: requests of a seed, the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/virtual_cluster.h"

namespace baton {

using Requests = std::vector<VirtualRequest>;

/// Poisson arrivals at `rate` a second.
Requests questions(std::uint64_t seed, std::uint32_t count, double rate);

/// The same, but each belongs to one of forty conversations and begins with the 1,200 tokens said
/// there.
Requests chats(std::uint64_t seed, std::uint32_t count, double rate);

/// Three phases of 60 s (for a `count` of 2,000), Poisson: prompts, replies, and prompts again;
/// each somewhat more than half of the workers could serve of its kind.
Requests shifting(std::uint64_t seed, std::uint32_t count, double workers);

/// Lengths around a median (lognormal), within bounds; replies have about `reply` tokens.
struct PromptKind {
  double median, sigma, least, most;  // tokens
  double reply;
};

/// Poisson arrivals at `rate` a second, each of one of the kinds, as likely as the others.
Requests prompts_of(std::uint64_t seed, std::uint32_t count, double rate,
                    const std::vector<PromptKind>& kinds);

}  // namespace baton
