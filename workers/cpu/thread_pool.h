// A small pool for the phases of one step: a few microseconds of work each, many per step.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace baton::cpu {

/// Runs numbered chunks of work on the calling thread and on `threads - 1` helpers. Chunks are
/// claimed one by one, so a helper that sleeps, or that the system has put aside for another
/// process, delays nobody: the caller does its share. Helpers look for work for a short time, then
/// sleep.
///
/// One caller at a time. Which thread runs a chunk is not defined; results must not depend on it.
class ThreadPool {
 public:
  /// At most kMaxThreads; 0 counts as 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Every chunk that has ended adds one to `progress`, which outlives this: somebody who waits
  /// for a job tells a long one from one that has stopped.
  void count_chunks(std::atomic<std::uint32_t>* progress) { progress_ = progress; }

  static constexpr int kMaxThreads = 256;
  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Calls work(chunk, thread) for every chunk in [0, chunks); `thread` is below threads(), 0 for
  /// the caller. Returns when all have ended. `work` must not throw and must not call run().
  template <class Work>
  void run(int chunks, Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    run_job(
        chunks, [](void* w, int chunk, int thread) { (*static_cast<Plain*>(w))(chunk, thread); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

 private:
  using Call = void (*)(void* work, int chunk, int thread);

  /// Jobs alternate between two slots: a helper that is late still reads the slot of its own job,
  /// and its claim fails because the ticket has moved on.
  struct Slot {
    std::atomic<Call> call{nullptr};
    std::atomic<void*> work{nullptr};
    std::atomic<std::uint32_t> chunks{0};
    alignas(64) std::atomic<std::uint32_t> done{0};
  };

  void run_job(int chunks, Call call, void* work);
  void chunk_ended() const {
    if (progress_ != nullptr) progress_->fetch_add(1, std::memory_order_relaxed);
  }
  void work_on(std::uint32_t job, int thread);
  void help(int thread);
  bool wait_for_job(std::uint32_t last_job);

  alignas(64) std::atomic<std::uint64_t> ticket_{0};  // job number << 32 | next chunk
  alignas(64) std::array<Slot, 2> slots_;
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  std::atomic<std::uint32_t> asleep_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint32_t>* progress_ = nullptr;  // set before the first job
  std::vector<std::thread> helpers_;
};

}  // namespace baton::cpu
