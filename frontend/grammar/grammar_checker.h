// The front end's side of baton-grammar: queues in which clients take turns, threads with a process
// each, and what was found before. Every grammar is tried for a short time first; what needs longer
// goes on in a lane of its own, so that nobody's small grammar waits for large ones.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/core/fair_queue.h"
#include "frontend/core/helper_process.h"
#include "frontend/grammar/grammar_check.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

inline constexpr const char* kTooManyGrammars =
    "too many requests wait for their grammars to be checked";

/// Thread-safe.
class GrammarChecker {
 public:
  using Done = std::function<void(const Status& status)>;

  struct Options {
    std::string model_folder;
    std::string program = program_path();
    std::size_t slow_threads = 1;          // besides the one that tries everything for quick_cpu
    std::size_t max_waiting = 256;         // in each of the two lanes
    std::size_t cache_bytes = 16U << 20U;  // of texts whose answers are kept
    TimeNs start_time = 60 * kSecond;      // for a process to read the vocabulary
    TimeNs cpu = kSecond;                  // GrammarLimits::cpu
    TimeNs quick_cpu = kSecond / 4;        // likewise, the first time

    /// baton-grammar beside this program, or in bin/ beside the folder of this program.
    static std::string program_path();
  };

  /// Starts threads, which start their processes, those of slow ones when they are needed. Does not
  /// wait.
  explicit GrammarChecker(Options options);
  ~GrammarChecker() { stop(); }
  GrammarChecker(const GrammarChecker&) = delete;
  GrammarChecker& operator=(const GrammarChecker&) = delete;

  /// Calls `done`: with ok if the grammar can be served, with invalid_argument and the reason if
  /// not, with unavailable where nobody can say, with cancelled once `wanted` (which must be quick,
  /// and is asked on other threads) said no. On this thread if it was asked before, else on one of
  /// the checker's. Owners, whatever names them, take turns; a grammar that waits gives way to an
  /// owner with fewer, and `done` then gets queue_full. False when too many wait and no owner has
  /// more, or after stop(): `done` is then not called.
  bool check(GrammarKind kind, const std::string& text, const std::string& owner,
             std::function<bool()> wanted, Done done);

  /// Ends threads and processes, whatever these are at. What still waits is not answered.
  void stop();

 private:
  struct Task {
    std::string frame;
    std::string owner;
    std::function<bool()> wanted;
    Done done;
  };
  using Queue = FairQueue<Task>;
  using Process = std::unique_ptr<HelperProcess>;
  struct Known {
    std::string frame;
    Status status;
  };

  bool push(Queue& queue, Task task);
  void work(Queue& queue, TimeNs cpu);
  Status ask(Process& process, const Task& task, TimeNs cpu);
  Status start(Process& process, TimeNs cpu);
  void end(Process& process);
  void remember(const std::string& frame, const Status& status);

  const Options options_;
  Queue quick_{options_.max_waiting};
  Queue slow_{options_.max_waiting};
  std::mutex mutex_;  // guards what was found before, and:
  std::set<pid_t> processes_;
  bool stopping_ = false;
  std::list<Known> known_;                                                  // the latest used first
  std::unordered_map<std::string_view, std::list<Known>::iterator> index_;  // keys lie in known_
  std::size_t known_bytes_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace baton
