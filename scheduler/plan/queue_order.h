// Who is next, and since when the queue must have waited. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// How far the queue is searched for a request that this worker may take: most can take the first.
constexpr int kQueueLook = 16;
/// Beside them, those who may stand in front and wait for something else: for the worker where they
/// were preempted, or for their grammar.
constexpr int kAsideLook = 1024;

/// Where a request stands in every queue: its arrival, moved by `priority_age` a step of its
/// priority and, with `queue_order: shortest`, by `input_age` a token of its prompt. So the queue
/// is ordered by priority and length among those that came within that time, and whoever has waited
/// longer goes first all the same: nothing starves.
TimeNs queue_place(const Submit& submit, const Settings& settings);

/// The queue, walked in its order: by place; with `queue_order: fair` the tenants' queues are
/// merged, each ordered by place: the lower priority first, then the least counter, then who has
/// the fewest requests open. So that the walk shows whom the planner would take if it took all, a
/// request that is passed counts as if its prompt were computed. What the walk has passed may leave
/// the queue.
class QueueWalk {
 public:
  explicit QueueWalk(const State& state);
  /// The id of the next request; 0: there is none.
  std::uint64_t next();

 private:
  struct Line {
    const Tenant* tenant = nullptr;
    double counter = 0;
    std::set<QueueKey>::const_iterator at;
  };
  /// Of two lines, `a` comes later.
  static bool later(const Line& a, const Line& b);

  const State& state_;
  std::set<QueueKey>::const_iterator at_;  // without tenants
  std::vector<Line> lines_;                // a heap: the next one first
};

/// The first of the queue; null: it is empty.
Request* first_waiting(State& state);

/// `a`'s tenant is served before `b`'s; false unless `queue_order: fair`.
bool tenant_goes_first(const State& state, const Request& a, const Request& b);

/// Hand-offs without a target, in the order in which they get one.
std::vector<std::uint64_t> handoffs_in_order(const State& state);

/// A request enters, or leaves, the queue at its place. Of one that is not there: no-op.
void enter_queue(State& state, const Request& request);
void leave_queue(State& state, const Request& request);

/// Where a request that was preempted as the `eviction`-th stands from then on (`preempted`): at
/// its old `place`; before every request that was never preempted, in the order of eviction (a
/// queue of swapped requests that is served first); or at the very front, the last one evicted
/// first. `kept`: its blocks outlive it in the host part, so it costs little to bring it back
/// before others begin. `again`: it begins again from its prompt. Two of those at the very front
/// would preempt each other in turn, and neither would get on, so they stand in the order of
/// eviction.
TimeNs place_after_preemption(TimeNs place, std::uint64_t eviction, bool kept, bool again,
                              const Settings& settings);

/// How long the longest waiting one of those whose turn is next has waited; nothing if nobody
/// waits.
std::optional<TimeNs> oldest_wait(const State& state, TimeNs now);

/// True if prompts may be admitted after that wait: it is longer than `factor` times the latency of
/// the last step with prompts, so that prompts gather and decoding is interrupted less often; or
/// nothing runs. False if nobody waits. (vLLM's scheduler_delay_factor.)
bool delay_passed(double factor, std::optional<TimeNs> waited, TimeNs prompt_latency, bool idle);

}  // namespace baton
