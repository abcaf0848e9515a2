#include "scheduler/plan/static_batching.h"

#include <algorithm>

#include "scheduler/apply/membership.h"
#include "scheduler/apply/requests.h"
#include "scheduler/plan/queue_order.h"

namespace baton {

namespace {

/// True once every member has ended; then their terminals go out (a member may have been replaced
/// or forgotten without passing through end_request).
bool group_over(State& state, Outbox& out) {
  for (const std::uint64_t id : state.group) {
    const Request* member = state.requests.find(id);
    if (member != nullptr && member->phase != Phase::ended) return false;
  }
  for (const std::uint64_t id : state.group) {
    Request* member = state.requests.find(id);
    if (member != nullptr && !member->terminal_sent) send_terminal(state, *member, out);
  }
  state.group.clear();
  return true;
}

/// The shared limits of the lab's base program: the longest maximum, the smallest minimum, the
/// highest temperature, for everybody. That is what the baseline is there to show; a client still
/// gets no more tokens than it asked for.
void share_limits(State& state) {
  SamplingParams shared;
  shared.temperature = 0;
  shared.max_tokens = 0;
  shared.min_tokens = ~0U;
  for (const std::uint64_t id : state.group) {
    const SamplingParams& own = state.requests.find(id)->sampling;
    // A search's lengths are part of it, and nothing follows a vector.
    if (own.beams() || own.pools()) continue;
    shared.temperature = std::max(shared.temperature, own.temperature);
    shared.max_tokens = std::max(shared.max_tokens, own.max_tokens);
    shared.min_tokens = std::min(shared.min_tokens, own.min_tokens);
  }
  const std::uint32_t context = max_context(state);
  for (const std::uint64_t id : state.group) {
    Request& request = *state.requests.find(id);
    if (request.beams || request.sampling.pools()) continue;
    const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
    request.client_tokens = request.sampling.max_tokens;
    request.sampling.temperature = shared.temperature;
    request.sampling.min_tokens = shared.min_tokens;
    request.sampling.max_tokens =
        context > prompt ? std::min(shared.max_tokens, context - prompt) : shared.max_tokens;
  }
}

/// The same generation, but for the seed: each row draws from its own.
bool same_config(const SamplingParams& a, const SamplingParams& b) {
  SamplingParams seeded = a;
  seeded.seed = b.seed;
  return seeded == b;
}

struct NextGroup {
  std::vector<std::uint64_t> members;
  bool full = false;  // nobody else would get in
};

/// The queue's head and those behind it that may join it, as many beams as a group holds. The first
/// of them that does not fit ends it, so that nobody is overtaken by a narrower one; a head that is
/// too wide runs alone.
NextGroup next_group(const State& state) {
  NextGroup next;
  std::uint32_t left = state.settings.static_batch_size;
  QueueWalk walk(state);
  std::uint64_t id = walk.next();
  const Request& head = *state.requests.find(id);
  for (; id != 0; id = walk.next()) {
    const Request& request = *state.requests.find(id);
    if (state.settings.static_same_config && !same_config(head.sampling, request.sampling))
      continue;
    const std::uint32_t width = request.sampling.num_beams;
    next.full = width > left && id != head.id;
    if (next.full) break;
    next.members.push_back(id);
    left -= std::min(left, width);
    next.full = left == 0;
    if (next.full) break;
  }
  return next;
}

}  // namespace

bool static_batch_allows(const State& state, const Request& request) {
  return state.settings.batching == Batching::continuous || request.grouped;
}

void form_static_group(State& state, TimeNs now, Outbox& out) {
  if (state.settings.batching == Batching::continuous) return;
  if (!group_over(state, out) || state.waiting.empty()) return;
  NextGroup next = next_group(state);
  const auto waited = [&](const auto& entry) {
    return now - state.requests.find(entry.second)->arrival >= state.settings.static_interval;
  };
  const bool due = next.full || std::any_of(state.waiting.begin(), state.waiting.end(), waited);
  if (!due) return;  // all came within the interval: the search is short
  state.group = std::move(next.members);
  for (const std::uint64_t id : state.group) state.requests.find(id)->grouped = true;
  share_limits(state);
}

}  // namespace baton
