// Rank 1 of a worker of two on CPUs, as a process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "workers/execute/cpu_executor.h"
#include "workers/execute/cpu_rank.h"
#include "workers/execute/rank_process.h"

namespace baton::test {

/// Killed at its end, if it still runs.
class ForkedRank {
 public:
  /// Before this process has any thread.
  explicit ForkedRank(const CpuExecutor::Options& options) : pid_(::fork()) {
    if (pid_ != 0) return;
    Config config;
    config.run_dir = options.run_dir;
    config.self.name = options.name;
    config.self.ranks = options.ranks;
    config.self.rank = 1;
    SignalFd own_signals;
    ::_exit(run_rank_process(config, options.group_options(1), make_cpu_rank(options, 1),
                             own_signals));
  }
  ~ForkedRank() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ForkedRank(const ForkedRank&) = delete;
  ForkedRank& operator=(const ForkedRank&) = delete;

  pid_t pid() const { return pid_; }
  /// Somebody has waited for its end.
  void forget() { pid_ = 0; }

 private:
  pid_t pid_;
};

}  // namespace baton::test
