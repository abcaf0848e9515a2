// A thread that says which of some processes has ended, as soon as the kernel knows (pidfd).
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ipc/process.h"

namespace baton {

class Watchdog {
 public:
  /// Called once for each process that ends, on the watchdog's thread.
  using OnEnd = std::function<void(int rank)>;

  explicit Watchdog(OnEnd on_end);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From any thread. False: there is no such process, or the kernel has no pidfd.
  bool watch(int rank, std::int32_t pid);
  /// For a watched process that has not ended; the pidfd makes sure that it is that one.
  void signal(int rank, int number);
  /// SIGKILL, for one that does not answer.
  void kill(int rank);

 private:
  struct Watched {
    int rank = 0;
    UniqueFd fd;
    bool ended = false;
  };
  void run();

  OnEnd on_end_;
  Waker waker_;
  std::mutex mutex_;
  std::vector<Watched> watched_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace baton
