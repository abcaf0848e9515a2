// Threads for what takes long enough to hold others up: large bodies' JSON and tokens. Those who
// brought the work take turns.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "frontend/core/fair_queue.h"

namespace baton {

/// Thread-safe.
class WorkPool {
 public:
  struct Options {
    std::size_t threads = 2;
    std::size_t max_waiting = 1024;
    std::size_t max_bytes = std::size_t{256} << 20;  // of all that wait or are worked on
  };

  explicit WorkPool(Options options);
  ~WorkPool() { stop(); }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  /// Runs `work`, which must not throw, on one of the threads. `bytes`: what it holds meanwhile.
  /// False when too much waits and no owner has more waiting, or after stop(): it is then not run.
  /// Work that waits gives way to an owner with less: `displaced` is then called instead of it, on
  /// any thread that pushes.
  bool push(const std::string& owner, std::size_t bytes, std::function<void()> work,
            std::function<void()> displaced = {});

  /// Ends the threads after what they are at. What still waits is dropped.
  void stop();

 private:
  struct Task {
    std::size_t bytes = 0;
    std::function<void()> work;
    std::function<void()> displaced;
  };
  void run();

  const Options options_;
  FairQueue<Task> tasks_;
  std::vector<std::thread> threads_;
};

}  // namespace baton
