// The processes that render chat templates, and the threads that wait for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "frontend/chat/template_process.h"
#include "frontend/core/fair_queue.h"
#include "ipc/status.h"

namespace baton {

inline constexpr const char* kTooManyChats =
    "too many chats wait for the renderer of chat templates";

/// Each thread renders with one process at a time. One more process has started already, so that a
/// killed one is replaced at once; a keeper thread starts the next. Thread-safe.
class TemplatePool {
 public:
  using Done = std::function<void(const Result<std::string>& rendered)>;

  struct Options {
    std::size_t threads = 2;
    std::size_t spares = 1;
    std::size_t max_waiting = 256;
    TimeNs retry = 5 * kSecond;  // between two attempts to start a process
  };

  /// Starts threads, which start processes. Does not wait.
  TemplatePool(TemplateSetup setup, Options options);
  ~TemplatePool() { stop(); }
  TemplatePool(const TemplatePool&) = delete;
  TemplatePool& operator=(const TemplatePool&) = delete;

  /// Waits for the first process: why it does not start, if it does not.
  Status await_first(TimeNs at_most);
  /// The same of several pools, which start beside one another: a status each, after `at_most` in
  /// all. Calls `alive` again and again meanwhile.
  static std::vector<Status> await_all(const std::vector<TemplatePool*>& pools, TimeNs at_most,
                                       const std::function<void()>& alive);

  /// Ends threads and processes. What still waits is not rendered, and its `done` is not called.
  void stop();

  /// Calls `done` on a thread of the pool once `request` was rendered, or could not be, or
  /// (cancelled) need not be since `wanted` said no, which is asked on that thread. Owners,
  /// whatever names them, take turns; a request that waits gives way to an owner with fewer, and
  /// `done` then gets queue_full, on a thread that calls this. False when too many wait and no
  /// owner has more, or after stop(): `done` is then not called.
  bool render(std::string request, const std::string& owner, std::function<bool()> wanted,
              Done done);

  /// The processes that wait for work, for tests.
  std::vector<pid_t> idle_pids();

 private:
  struct Task {
    std::string request;
    std::function<bool()> wanted;
    Done done;
  };
  using Process = std::unique_ptr<TemplateProcess>;

  /// Whether a process has been started, or could not be, within `at_most`.
  bool await_tried(TimeNs at_most);
  void keep();
  void work();
  Result<std::string> render_now(const std::string& request);
  Result<Process> take_process();
  void give_back(Process process);

  const TemplateSetup setup_;
  const Options options_;
  FairQueue<Task> tasks_{options_.max_waiting};
  std::mutex mutex_;                 // guards what follows
  std::condition_variable changed_;  // a process came or went, or starting failed
  std::vector<Process> idle_;
  std::size_t lent_ = 0;
  bool tried_ = false;  // to start one
  Status failure_;      // why the last attempt failed
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton
