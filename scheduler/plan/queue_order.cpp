#include "scheduler/plan/queue_order.h"

#include <algorithm>
#include <tuple>

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

bool QueueWalk::later(const Line& a, const Line& b) {
  const auto key = [](const Line& line) {
    return std::tuple(line.tenant->priority, line.counter, line.tenant->open, *line.at);
  };
  return key(a) > key(b);
}

QueueWalk::QueueWalk(const State& state) : state_(state), at_(state.waiting.begin()) {
  if (state.settings.queue_order != QueueOrder::fair) return;
  lines_.reserve(state.tenants.queued().size());
  for (const TenantIndex index : state.tenants.queued()) {
    const Tenant& tenant = state.tenants.of(index);
    lines_.push_back({&tenant, tenant.counter, tenant.waiting.begin()});
  }
  std::make_heap(lines_.begin(), lines_.end(), later);
}

std::uint64_t QueueWalk::next() {
  if (state_.settings.queue_order != QueueOrder::fair) {
    return at_ == state_.waiting.end() ? 0 : (at_++)->second;
  }
  if (lines_.empty()) return 0;
  std::pop_heap(lines_.begin(), lines_.end(), later);
  Line& line = lines_.back();
  const std::uint64_t id = (line.at++)->second;
  if (line.at == line.tenant->waiting.end()) {
    lines_.pop_back();
    return id;
  }
  const Request& request = *state_.requests.find(id);
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  const std::uint32_t cost = prompt - std::min(prompt, request.charged_prompt);
  line.counter += std::max(cost, 1U) / line.tenant->weight;
  std::push_heap(lines_.begin(), lines_.end(), later);
  return id;
}

Request* first_waiting(State& state) { return state.requests.find(QueueWalk(state).next()); }

bool tenant_goes_first(const State& state, const Request& a, const Request& b) {
  if (state.settings.queue_order != QueueOrder::fair || a.tenant == b.tenant) return false;
  const auto key = [&](const Request& request) {
    const Tenant& tenant = state.tenants.of(request.tenant);
    return std::tuple(tenant.priority, tenant.counter, tenant.open);
  };
  return key(a) < key(b);
}

std::vector<std::uint64_t> handoffs_in_order(const State& state) {
  std::vector<std::uint64_t> order;
  order.reserve(state.handoffs.size());
  for (const auto& [place, id] : state.handoffs) order.push_back(id);
  if (state.settings.queue_order == QueueOrder::fair) {
    std::stable_sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
      return tenant_goes_first(state, *state.requests.find(a), *state.requests.find(b));
    });
  }
  return order;
}

void enter_queue(State& state, const Request& request) {
  state.waiting.insert({request.place, request.id});
  state.tenants.enter_queue(request.tenant, {request.place, request.id});
}

void leave_queue(State& state, const Request& request) {
  state.waiting.erase({request.place, request.id});
  state.tenants.leave_queue(request.tenant, {request.place, request.id});
}

std::optional<TimeNs> oldest_wait(const State& state, TimeNs now) {
  std::optional<TimeNs> oldest;
  QueueWalk walk(state);
  for (int looked = 0; looked < kOldestAmong; ++looked) {
    const std::uint64_t id = walk.next();
    if (id == 0) break;
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
