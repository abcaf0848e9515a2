#include "workers/cpu/thread_pool.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

namespace baton::cpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Longer than the gaps between the phases of a step, shorter than anything another process would
/// miss.
constexpr auto kHelperSpin = std::chrono::microseconds(40);
constexpr auto kCallerSpin = std::chrono::microseconds(20);
constexpr int kPausesPerLook = 16;

void pause_some() {
  for (int i = 0; i < kPausesPerLook; ++i) _mm_pause();
}

constexpr std::uint32_t job_of(std::uint64_t ticket) {
  return static_cast<std::uint32_t>(ticket >> 32);
}
constexpr std::uint32_t chunk_of(std::uint64_t ticket) {
  return static_cast<std::uint32_t>(ticket);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int helpers = std::clamp(threads, 1, kMaxThreads) - 1;
  helpers_.reserve(static_cast<std::size_t>(helpers));
  for (int i = 1; i <= helpers; ++i) helpers_.emplace_back([this, i] { help(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run_job(int chunks, Call call, void* work) {
  if (chunks <= 0) return;
  if (chunks == 1 || helpers_.empty()) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      call(work, chunk, 0);
      chunk_ended();
    }
    return;
  }
  const std::uint32_t job = job_of(ticket_.load(std::memory_order_relaxed)) + 1;
  Slot& slot = slots_[job % 2];
  const auto n = static_cast<std::uint32_t>(chunks);
  slot.call.store(call, std::memory_order_relaxed);
  slot.work.store(work, std::memory_order_relaxed);
  slot.chunks.store(n, std::memory_order_relaxed);
  slot.done.store(0, std::memory_order_relaxed);
  ticket_.store(static_cast<std::uint64_t>(job) << 32);
  // Either this sees the sleeper, or the sleeper, which looks once more before it sleeps, the
  // ticket.
  if (asleep_.load() != 0 && asleep_.exchange(0) != 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  work_on(job, 0);
  Clock::time_point limit;
  for (int looks = 0; slot.done.load(std::memory_order_acquire) != n; ++looks) {
    if (looks == 0) limit = Clock::now() + kCallerSpin;
    if (Clock::now() < limit) {
      _mm_pause();
    } else {
      std::this_thread::yield();  // a helper was put aside in the middle of a chunk
    }
  }
}

void ThreadPool::work_on(std::uint32_t job, int thread) {
  Slot& slot = slots_[job % 2];
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  std::uint32_t finished = 0;
  while (job_of(ticket) == job) {
    const Call call = slot.call.load(std::memory_order_relaxed);
    void* work = slot.work.load(std::memory_order_relaxed);
    if (chunk_of(ticket) >= slot.chunks.load(std::memory_order_relaxed)) break;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    call(work, static_cast<int>(chunk_of(ticket)), thread);
    chunk_ended();
    ++finished;
    ticket = ticket_.load(std::memory_order_acquire);
  }
  if (finished != 0) slot.done.fetch_add(finished, std::memory_order_acq_rel);
}

/// True when there is a job after `last_job`, false to stop.
bool ThreadPool::wait_for_job(std::uint32_t last_job) {
  const auto arrived = [&] { return job_of(ticket_.load()) != last_job; };
  while (!stop_.load()) {
    const Clock::time_point limit = Clock::now() + kHelperSpin;
    do {
      if (arrived()) return true;
      pause_some();
    } while (Clock::now() < limit);
    const std::uint32_t seen = wake_.load();
    asleep_.fetch_add(1);
    if (!arrived() && !stop_.load()) wake_.wait(seen);
    if (arrived()) return true;
  }
  return false;
}

void ThreadPool::help(int thread) {
  std::uint32_t job = 0;
  while (wait_for_job(job)) {
    job = job_of(ticket_.load(std::memory_order_acquire));
    work_on(job, thread);
  }
}

}  // namespace baton::cpu
