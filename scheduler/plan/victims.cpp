// Whom to preempt when a pool is full. Recomputation brings the same tokens whoever it is; the
// choice decides how much is computed twice, and who waits.
#include <tuple>

#include "scheduler/plan/policy.h"

namespace baton {

namespace {

/// The candidate with the largest key gives way; among equals, the one that stands last.
using Key = std::tuple<std::int64_t, TimeNs, std::uint64_t>;

Key key_of(const Sequence& sequence, const Request& request, Victim rule) {
  std::int64_t first = 0;
  if (rule == Victim::shortest) first = -std::int64_t{request.length()};
  if (rule == Victim::tail) first = static_cast<std::int64_t>(sequence.order);
  return {first, request.place, request.id};
}

}  // namespace

Request* choose_victim(State& state, WorkerIndex worker) {
  Request* victim = nullptr;
  Key largest;
  std::uint32_t candidates = 0;
  state.sequences.each([&](const Sequence& sequence) {
    // One that another worker runs may have blocks here, too.
    if (!sequence.lies_in(worker) || sequence.retiring || sequence.width == 0) return;
    Request* request = state.requests.find(sequence.request);
    ++candidates;
    const Key key = key_of(sequence, *request, state.settings.victim);
    if (victim != nullptr && key <= largest) return;
    victim = request;
    largest = key;
  });
  return candidates > 1 ? victim : nullptr;
}

}  // namespace baton
