#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "supervisor/child_process.h"

namespace baton {

/// Whom the live line asks.
struct AskedScheduler {
  std::string model;  ///< what its part of the line begins with; empty: nothing, it is the only one
  std::string admin_socket;
};

struct SuperviseOptions {
  std::filesystem::path run_dir;  ///< made 0700 if it is missing
  Seconds frozen_after{10.0};     ///< zero: never judged frozen
  Seconds drain_bound{8.0};       ///< how long front ends may drain before the others are told
  Seconds stop_bound{10.0};       ///< after this, whatever is left gets SIGKILL
  /// Of all processes' log lines, the supervisor's own included.
  LogFormat log_format = LogFormat::text;
  /// Whether standard output shows warnings and, below them, one line of what goes on at the moment
  /// as the schedulers tell it, instead of every line of the logs.
  bool live = false;
  std::vector<AskedScheduler> schedulers{};
  std::vector<std::string> warnings{};  ///< about the configuration; said at the start
  /// How the supervisor itself is started: its binary's path, then its arguments. At SIGUSR2 it
  /// becomes the binary that lies there by then; without a path it stays what it is.
  std::vector<std::string> self{};
};

inline constexpr int kGaveUp = 2;

/// Starts the processes and keeps them alive until SIGTERM, SIGINT or SIGHUP, then stops them stage
/// by stage. A second signal kills at once. Processes that an earlier supervisor of the same folder
/// left running (it was killed) are adopted; those that another command would start now are ended
/// and started anew. SIGUSR2 replaces this program by the binary on disk, under the same pid and
/// with the same children. Also reaps whatever the processes leave behind, so that
/// it can be process 1 of a container.
/// One that was never up and ends with a final status, or too often, ends them all
/// (child_process.h); one of several models does so only where no model has a worker that can run.
/// Returns 0 when all ended by themselves after the signal, 1 when one had to be killed, kGaveUp
/// when a process could not run; then the last line says which and why. Throws std::runtime_error
/// if it cannot begin.
int supervise(std::vector<ProcessSpec> specs, const SuperviseOptions& options);

}  // namespace baton
