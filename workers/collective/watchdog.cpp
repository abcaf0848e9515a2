#include "workers/collective/watchdog.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace baton {

Watchdog::Watchdog(OnEnd on_end) : on_end_(std::move(on_end)), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  waker_.wake();
  thread_.join();
}

bool Watchdog::watch(int rank, std::int32_t pid) {
  UniqueFd fd(open_pidfd(pid));
  if (!fd) return false;
  {
    const std::lock_guard lock(mutex_);
    watched_.push_back({rank, std::move(fd), false});
  }
  waker_.wake();
  return true;
}

void Watchdog::kill(int rank) { signal(rank, SIGKILL); }

void Watchdog::signal(int rank, int number) {
  const std::lock_guard lock(mutex_);
  for (const Watched& each : watched_) {
    if (each.rank == rank && !each.ended) {
      ::syscall(SYS_pidfd_send_signal, each.fd.get(), number, nullptr, 0U);
    }
  }
}

void Watchdog::run() {
  std::vector<pollfd> fds;
  std::vector<int> ended;
  for (;;) {
    fds.assign(1, {waker_.fd(), POLLIN, 0});
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      // One that has ended keeps its place, and is not looked at any more.
      for (const Watched& each : watched_)
        fds.push_back({each.ended ? -1 : each.fd.get(), POLLIN, 0});
    }
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) waker_.clear();
    ended.clear();
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 1; i < fds.size(); ++i) {
        if (fds[i].revents == 0) continue;
        watched_[i - 1].ended = true;
        ended.push_back(watched_[i - 1].rank);
      }
    }
    for (const int rank : ended) on_end_(rank);
  }
}

}  // namespace baton
