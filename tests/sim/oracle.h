// What the simulated model would say: every token is a function of the sequence before it, so each
// request's whole answer is known before it is asked. The same function fills the simulated KV
// pools: the cell of a token holds the hash of everything up to it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

namespace baton::sim {

/// Contents of a KV cell before the first token. Without a prefix cache `tenant` is the request's
/// seed, so that no two requests share a cell by accident; with one it stands for the salt.
constexpr std::uint64_t prefix_root(std::uint64_t tenant) { return mix(tenant ^ 0xB10C5EEDULL); }
constexpr std::uint64_t extend_prefix(std::uint64_t prefix, Token token) {
  return mix(prefix ^ (static_cast<std::uint64_t>(token) + 0x100));
}
/// What the cell of a group of layers holds: others must not be taken for it.
constexpr std::uint64_t cell_of(std::uint64_t prefix, std::uint32_t group) {
  return group == 0 ? prefix : mix(prefix + group);
}
/// The token that follows `prefix`, the `n_generated`-th of the answer.
Token sample(std::uint64_t prefix, std::uint32_t n_generated, const SamplingParams& sampling,
             std::uint32_t vocab);

/// What may follow `prefix` in a beam search, best first, as StepResult::candidates has it.
struct Ranking {
  std::vector<Token> tokens;
  std::vector<float> logprobs;
};
Ranking rank(std::uint64_t prefix, std::uint32_t n_generated, const SamplingParams& sampling,
             std::uint32_t vocab);

constexpr std::uint32_t kNever = ~0U;

/// One request: what is asked, what its client will do, and what must come back.
struct RequestSpec {
  std::vector<Token> prompt;
  std::string cache_salt;
  std::uint64_t root = 0;            // prefix_root() of its tenant
  SamplingParams sampling;           // `seed` is kFirstSeed + the index of this spec
  TimeNs timeout = 0;                // 0: none that matters
  TimeNs cancel_after = 0;           // 0: never
  std::uint32_t stop_at = kNever;    // the client's stop string ends with this many tokens
  std::uint32_t bad_row = kNever;    // sampling this token fails
  std::uint32_t killer_at = kNever;  // sampling this token kills the worker

  Strike strike = Strike::none;
  std::string strikes_by;          // of a striker: the same for those that share it
  std::uint32_t strike_at = 0;     // decode and scheduler: from this token on ...
  std::uint32_t strike_every = 1;  // ... at each so many-th
  std::int32_t priority = 0;
  TenantShare share;

  std::vector<Token> answer;  // up to and with the last token; of all that a beam search finds
  FinishReason reason = FinishReason::none;
  std::vector<float> vector;           // of one that pools
  std::vector<std::uint32_t> lengths;  // of what a beam search finds
  std::uint32_t steps = 0;             // tokens that it looks ahead

  // What has happened to it.
  std::uint32_t blows =
      0;  // deaths and freezes of workers while it was open that no request has caused
  std::uint32_t schedulers_killed = 0;  // by blows, likewise
  bool hangs = false;                   // some worker hangs, or hung, at its work
  std::uint32_t struck = 0;             // deaths that this request has caused
  std::uint32_t strikes_met = 0;        // that happened while it was open, its own as well
  TimeNs asked = 0;
  TimeNs ended = 0;  // its client has its end; 0: not yet
};

/// What the model gives for a prompt that is pooled: `prefix` is that of all its tokens.
std::vector<float> pooled_vector(std::uint64_t prefix);

constexpr std::uint64_t kFirstSeed = 1'000'000;

/// Draws the next request of the load. `earlier`: those before it, whose beginnings it may repeat.
RequestSpec draw_request(const Scenario& scenario, const std::deque<RequestSpec>& earlier,
                         Random& random);

}  // namespace baton::sim
