// The only copy between processes: a thread that reads blocks out of the mapped pools of other
// workers into the own pool. A pull never blocks a step.
//
// A pool is mapped at the first pull from it and unmapped when it is told to, or reported as gone
// when its process has ended. Whether a mapping may be closed is decided by the protocol core,
// which knows the open pulls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "ipc/messages.h"
#include "ipc/process.h"
#include "ipc/spin.h"
#include "workers/execute/executor.h"

namespace baton {

namespace handoff_event {
struct PullFinished {
  PullId pull_id = 0;
  std::optional<std::string> failure;
  std::uint32_t duration_us = 0;
  std::vector<BlockId> damaged;  // as in PullFailed
  TimeNs began = 0;
  TimeNs ended = 0;
};
struct MappingClosed {
  AllocationId allocation = 0;
};
/// Told once a mapping.
struct ExporterGone {
  AllocationId allocation = 0;
};
}  // namespace handoff_event

using HandoffEvent = std::variant<handoff_event::PullFinished, handoff_event::MappingClosed,
                                  handoff_event::ExporterGone>;

class KvHandoff {
 public:
  struct Options {
    bool unmappable = false;          // tests: every map() fails
    std::uint32_t pull_delay_ms = 0;  // tests: between mapping and copying
    std::uint32_t wrong_every = 0;  // tests: every so-many-th pull copies one wrong block; 0: none
    std::uint32_t watch_ms = 250;   // how often exporters are looked at
  };

  /// Starts the thread. `waker` is woken after every event; it must outlive this.
  KvHandoff(std::unique_ptr<BlockReader> reader, Waker& waker, Options options);
  /// Finishes the job at hand, drops the others.
  ~KvHandoff();
  KvHandoff(const KvHandoff&) = delete;
  KvHandoff& operator=(const KvHandoff&) = delete;

  /// Queues; the caller bounds how many are out. Block ids must be inside both pools.
  void pull(Pull pull);
  /// Queues behind the pulls before it. Answered by MappingClosed even if nothing is mapped.
  void close(AllocationId allocation);
  /// Replaces `events` by what has happened since the last call, in order.
  void take(std::vector<HandoffEvent>& events);

 private:
  struct Mapping {
    std::unique_ptr<MappedPool> pool;
    std::int32_t pid = 0;  // 0: as in Pull
    std::uint64_t pid_start = 0;
    bool gone = false;
  };
  using Job = std::variant<Pull, Close>;

  void run();
  bool next_job(std::optional<Job>& job);
  void report(HandoffEvent event);
  void do_job(const Pull& pull);
  void do_job(const Close& close);
  std::optional<std::string> copy(const Pull& pull);
  std::vector<BlockId> damaged(const Pull& pull);
  void watch();

  std::unique_ptr<BlockReader> reader_;
  Waker& waker_;
  const Options options_;
  std::map<AllocationId, Mapping> mappings_;  // the thread's own
  Spin spin_;                                 // likewise
  std::uint64_t copied_ = 0;                  // pulls; likewise
  TimeNs watch_at_ = 0;                       // likewise

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;
  std::atomic<std::size_t> n_jobs_{0};  // size of jobs_, looked at without the lock
  std::vector<HandoffEvent> events_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton
