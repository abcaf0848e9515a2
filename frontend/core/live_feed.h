// What the console shows, asked of the scheduler's admin socket by a thread of its own, and only
// while somebody watches: one answer for all who do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ipc/process.h"
#include "ipc/types.h"

namespace baton {

class LiveFeed {
 public:
  struct Options {
    std::string admin_socket;
    TimeNs every = kSecond / 4;
    TimeNs patience = 2 * kSecond;  // for an answer
  };

  explicit LiveFeed(Options options);
  ~LiveFeed();
  LiveFeed(const LiveFeed&) = delete;
  LiveFeed& operator=(const LiveFeed&) = delete;

  /// From now on it is asked for, or no more; what was not taken is gone. Cheap to repeat.
  void watch(bool wanted);
  /// Readable when take() has something.
  int fd() const { return waker_.fd(); }
  /// The newest answer that was not taken yet, one line of JSON; null: there is none. While the
  /// scheduler does not answer it is kAway.
  std::shared_ptr<const std::string> take();

  static constexpr const char* kAway = "{\"away\":true}";

 private:
  void run();
  std::string ask(UniqueFd& socket) const;

  const Options options_;
  bool told_ = false;  // of watch(); of its caller's thread
  Waker waker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false;
  bool stop_ = false;
  std::shared_ptr<const std::string> newest_;
  std::atomic<bool> fresh_{false};  // take() has something to look for
  std::thread thread_;
};

}  // namespace baton
