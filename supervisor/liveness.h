#pragma once

// The rules by which the supervisor judges a process, as plain values: no clock, no /proc, no kill.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace baton {

using Seconds = std::chrono::duration<double>;

/// What was seen of a process at one moment.
struct Observation {
  Seconds now{};     ///< monotonic time of the look
  char state = 'S';  ///< the state letter of /proc/PID/stat
  std::optional<std::int64_t>
      heartbeat{};  ///< mtime of NAME.alive in ns; empty if there is no file
};

/// Decides whether a process is frozen: stopped (state T) without a break for `limit`, or its
/// heartbeat file unchanged for as long. A process that never touched its file is judged by the
/// state alone. Changes of the file are timed by the monotonic clock, so that a jump of the wall
/// clock freezes nobody. A `limit` of zero turns the judgement off.
class FreezeWatch {
 public:
  explicit FreezeWatch(Seconds limit) : limit_(limit) {}

  /// Forgets everything: a new process, or the observer itself was asleep.
  void reset() {
    stopped_since_.reset();
    heartbeat_.reset();
  }

  /// Returns why the process counts as frozen, or nothing.
  std::optional<std::string> observe(const Observation& seen) {
    if (seen.state != 'T') {
      stopped_since_.reset();
    } else if (!stopped_since_) {
      stopped_since_ = seen.now;
    }
    if (seen.heartbeat != heartbeat_) {
      heartbeat_ = seen.heartbeat;
      heartbeat_changed_ = seen.now;
    }
    if (limit_ <= Seconds::zero()) return std::nullopt;
    if (stopped_since_ && seen.now - *stopped_since_ >= limit_) return "stopped by a signal";
    if (heartbeat_ && seen.now - heartbeat_changed_ >= limit_) return "no heartbeat";
    return std::nullopt;
  }

 private:
  Seconds limit_;
  std::optional<Seconds> stopped_since_;
  std::optional<std::int64_t> heartbeat_;
  Seconds heartbeat_changed_{};
};

/// The pause before a process that died is started again: none for one that had been alive for 10
/// s, then 0.1 s, doubling to 5 s.
class Backoff {
 public:
  Seconds next(Seconds was_alive) {
    if (was_alive >= kHealthy) {
      pause_ = kFirst;
      return Seconds::zero();
    }
    const Seconds now = pause_;
    pause_ = pause_ * 2 < kLongest ? pause_ * 2 : kLongest;
    return now;
  }

 private:
  static constexpr Seconds kFirst{0.1};
  static constexpr Seconds kLongest{5.0};
  static constexpr Seconds kHealthy{10.0};
  Seconds pause_ = kFirst;
};

}  // namespace baton
