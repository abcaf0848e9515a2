// What one process needs to know about itself, about others, and about time. Linux only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "ipc/exit_status.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// "0.1.0 (1a2b3c4d5e6f)": version and commit of this build; two that differ are reported.
const char* build_version();

/// CLOCK_MONOTONIC: comparable between processes of one host. Only shells read it; planner and
/// state machine get time as a value.
TimeNs now_ns();
/// CLOCK_REALTIME, for incarnations, epochs and log lines.
TimeNs wall_ns();
/// The wall clock in ns, but larger than every value that a process got from here with this
/// `run_dir`: a clock that is set back makes no new process look older than the one before. The
/// last value is in run_dir/incarnation; without that file the clock alone counts.
Incarnation new_incarnation(const std::string& run_dir);

/// Field 22 of /proc/PID/stat (clock ticks since boot); 0 if there is no such process.
std::uint64_t pid_start_time(std::int32_t pid);
/// Seconds since a process with that start time began, by a clock that nobody sets; 0 if unknown.
double process_age(std::uint64_t start);
/// True if that very process exists and is not a zombie: a reused pid has another start time.
bool process_alive(std::int32_t pid, std::uint64_t start);
/// True if a signal (SIGSTOP) has stopped it.
bool process_stopped(std::int32_t pid);
/// A close-on-exec descriptor that becomes readable when the process ends; -1 if there is no such
/// process (another PID namespace included) or the kernel has no pidfd.
int open_pidfd(std::int32_t pid);

/// What this process uses, as Prometheus' clients tell it.
struct ProcessUsage {
  std::uint64_t resident_bytes = 0;
  double cpu_seconds = 0;  // in user and kernel mode, of all its threads
  double started = 0;      // unix seconds
};
/// Zeros where /proc cannot be read.
ProcessUsage process_usage();

/// A closing descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// Creates the directory 0700 (parents as needed, 0700 too), or checks that it is a directory of
/// this user that nobody else may enter; if it is ours but too open, it is closed to others.
Status ensure_private_directory(const std::string& path);

/// An exclusive flock on a file that holds the owner's pid; given back by the kernel when the
/// process dies, however it dies. Creates the directory (private) if needed.
class LockFile {
 public:
  /// The error names the pid of the holder.
  static Result<LockFile> acquire(const std::string& path);
  const std::string& path() const { return path_; }

 private:
  LockFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

/// run_dir/NAME.alive: its modification time says when the main loop last came round. The launcher
/// kills a process whose file is older than its limit.
class AliveFile {
 public:
  /// Creates the file; its content is the pid. Errors are reported by status().
  AliveFile(const std::string& run_dir, const std::string& name);
  /// Call it in every round of the main loop: touches at most once each 500 ms.
  void touch(TimeNs now);
  const Status& status() const { return status_; }

 private:
  UniqueFd fd_;
  TimeNs last_ = 0;
  Status status_;
};

/// Leaves run_dir/NAME.failed with the reason for which this process is about to end: the
/// supervisor says it again when it gives the start up. At most 4,000 bytes; without the file it
/// says less.
void leave_reason(const std::string& run_dir, const std::string& name, const std::string& reason);

/// Leaves run_dir/NAME.up ("PID PROTOCOL"): it does its work. A supervisor restarts one that was up
/// whatever happens to it; one that never was may end the whole start.
void mark_up(const std::string& run_dir, const std::string& name);

/// Lets any thread wake one that waits in a Poller (eventfd).
class Waker {
 public:
  Waker();
  void wake();
  /// Call it when fd() was ready, before looking at what the wakers left.
  void clear();
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

/// SIGTERM, SIGINT and SIGUSR1 as a descriptor for pollers; SIGPIPE ignored. Construct it in main() before
/// any thread: the mask is inherited, so that no other thread is interrupted.
class SignalFd {
 public:
  /// `reloads`: SIGHUP is taken, too, and asks to read files again; else it ends the process.
  explicit SignalFd(bool reloads = false);
  int fd() const { return fd_.get(); }
  /// Reads what has arrived; returns the number of SIGTERMs and SIGINTs seen since the start.
  int poll();
  bool requested() { return poll() > 0; }
  /// A SIGUSR1 was among them: leave at once, somebody takes over. Who has no successor ignores it.
  bool handover_requested() const { return handover_; }
  /// A SIGHUP has come since this was asked last.
  bool take_reload() { return std::exchange(reload_, false); }

 private:
  UniqueFd fd_;
  int seen_ = 0;
  bool handover_ = false;
  bool reload_ = false;
};

/// Undoes SignalFd's mask: between fork and exec of a child.
void unblock_signals();

}  // namespace baton
