#include "scheduler/plan/queue_order.h"

#include <algorithm>

namespace baton {

namespace {

/// Before every place that follows from an arrival, with room on both sides.
constexpr TimeNs kFront = -(TimeNs{1} << 62U);
/// Requests that are looked at for the oldest one: after that ordering and ageing have done their
/// part.
constexpr int kOldestAmong = 16;

}  // namespace

TimeNs queue_place(const Submit& submit, const Settings& settings) {
  TimeNs place = submit.arrival +
                 std::clamp(submit.priority, -kMaxPriority, kMaxPriority) * settings.priority_age;
  if (settings.queue_order == QueueOrder::shortest) {
    place += static_cast<TimeNs>(submit.prompt.size()) * settings.input_age;
  }
  return place;
}

TimeNs place_after_preemption(TimeNs place, std::uint64_t eviction, bool kept, bool again,
                              const Settings& settings) {
  Preempted rule = settings.preempted;
  if (rule == Preempted::automatic) rule = kept ? Preempted::first : Preempted::in_place;
  if (rule == Preempted::front && again) rule = Preempted::first;
  switch (rule) {
    case Preempted::automatic:
    case Preempted::in_place:
      break;
    case Preempted::first:
      return kFront + static_cast<TimeNs>(eviction);
    case Preempted::front:
      return kFront - static_cast<TimeNs>(eviction);
  }
  return place;
}

std::optional<TimeNs> oldest_wait(const State& state, TimeNs now) {
  std::optional<TimeNs> oldest;
  int looked = 0;
  for (const auto& [place, id] : state.waiting) {
    if (++looked > kOldestAmong) break;
    oldest = std::max(oldest.value_or(0), now - state.requests.find(id)->arrival);
  }
  return oldest;
}

bool delay_passed(double factor, std::optional<TimeNs> waited, TimeNs prompt_latency, bool idle) {
  if (!waited) return false;
  return idle || factor <= 0 ||
         static_cast<double>(*waited) > factor * static_cast<double>(prompt_latency);
}

}  // namespace baton
