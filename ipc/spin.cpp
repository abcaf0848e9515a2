#include "ipc/spin.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "ipc/process.h"

namespace baton {
namespace {

/// For a thread that has to be woken first, and its round.
constexpr TimeNs kUntilSeen = kMillisecond;

std::atomic<TimeNs> g_after_work{0};
std::atomic<TimeNs> g_awake_until{0};

}  // namespace

void stay_awake_for(TimeNs after_work) {
  g_after_work.store(after_work, std::memory_order_relaxed);
  g_awake_until.store(0, std::memory_order_relaxed);
}

void work_goes_on(TimeNs now) {
  const TimeNs after_work = g_after_work.load(std::memory_order_relaxed);
  if (after_work > 0) g_awake_until.store(now + after_work, std::memory_order_relaxed);
}

bool Spin::again() const {
  const TimeNs until = std::max(until_, g_awake_until.load(std::memory_order_relaxed));
  if (until == 0 || now_ns() >= until) return false;
  ::sched_yield();
  return true;
}

void Spin::heard() {
  const TimeNs after_work = g_after_work.load(std::memory_order_relaxed);
  until_ = after_work == 0 ? 0 : now_ns() + std::min(after_work, kUntilSeen);
}

}  // namespace baton
