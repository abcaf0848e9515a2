// The thread that owns the device: loads the model, allocates the pool, runs steps, one job at a
// time, so that the I/O loop goes on sending heartbeats meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "ipc/process.h"
#include "ipc/spin.h"
#include "workers/execute/executor.h"

namespace baton {

namespace step_event {
/// `hello` holds geometry, allocation and ranks.
struct PoolReady {
  Hello hello;
  UniqueFd lease;  // as in PoolExport
};
struct PoolFailed {
  std::string reason;
  bool final = false;  // another process of this configuration would meet the same
};
/// In order of the posts. Valid until `steps_at_once` further steps have been posted.
struct StepFinished {
  const StepOutput* output = nullptr;
  const RunStep* step = nullptr;
  TimeNs began = 0;  // its own time: after the one before it
  TimeNs ended = 0;
};
struct StepFailed {
  std::string reason;
};
}  // namespace step_event

using StepEvent = std::variant<step_event::PoolReady, step_event::PoolFailed,
                               step_event::StepFinished, step_event::StepFailed>;

class StepThread {
 public:
  struct Options {
    Token fault_token = -1;           // tests: abort() when a prompt row holds it
    std::uint32_t step_delay_ms = 0;  // tests: before each step
    std::uint32_t max_context = 0;    // positions served; 0: those that the model allows
    std::string sample_log;           // benchmarks: gets now_ns() after each step that sampled
    std::string step_log;             // benchmarks: gets a line for each step
    TimeNs allocate_patience = 12 * kSecond;  // memory of a dead predecessor may still be mapped
  };

  /// Starts the thread, which begins to load the model. `executor` and `waker` must outlive this.
  StepThread(Executor& executor, Waker& waker, Options options);
  /// Waits for the job at hand.
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  /// Queued behind the loading; answered by PoolReady or PoolFailed.
  void allocate(PoolRequest request);
  /// Answered by StepFinished or StepFailed; `step` must stay valid until then. At most the
  /// executor's steps_at_once may be unanswered.
  void run(const RunStep* step);
  /// Replaces `events` by what has happened since the last call.
  void take(std::vector<StepEvent>& events);

  /// 0..100; may be read by any thread.
  std::uint32_t loading_percent() const {
    return static_cast<std::uint32_t>(std::clamp(percent_.load(std::memory_order_relaxed), 0, 100));
  }

 private:
  using Job = std::variant<PoolRequest, const RunStep*>;
  /// A launched step and where its result goes (lent out by StepFinished).
  struct Launched {
    const RunStep* step = nullptr;
    TimeNs at = 0;
    StepOutput output;
  };

  void work();
  void load();
  void report(StepEvent event);
  StepEvent allocate_pool(const PoolRequest& request);
  void launch(const RunStep* step);
  void collect();
  void log_step(const Launched& launched, TimeNs end);
  bool next_job(std::optional<Job>& job);

  Executor& executor_;
  Waker& waker_;
  const Options options_;
  std::atomic<int> percent_{0};
  std::optional<Result<ModelShape>> model_;  // the thread's own
  std::vector<Launched> launched_;           // a ring
  std::size_t oldest_ = 0;
  std::size_t n_launched_ = 0;
  TimeNs last_end_ = 0;
  Spin spin_;
  bool failed_ = false;       // the device is lost: the process is about to end
  std::ofstream sample_log_;  // the thread's own
  std::ofstream step_log_;

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;
  std::atomic<std::size_t> n_jobs_{0};  // size of jobs_, looked at without the lock while steps run
  std::vector<StepEvent> events_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton
