// Tasks of several owners that wait for a few threads: owners take turns, and each one's tasks keep
// their order, so that an owner of many delays its own. Bounded: where there is no room, the owner
// with most waiting loses its latest task.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <iterator>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace baton {

/// Thread-safe.
template <typename Task>
class FairQueue {
 public:
  /// At most `most` tasks wait, and all that wait or are not finished() have at most `max_bytes`.
  explicit FairQueue(std::size_t most,
                     std::size_t max_bytes = std::numeric_limits<std::size_t>::max())
      : most_(most), max_bytes_(max_bytes) {}

  struct Pushed {
    bool taken = false;           // false: the queue is closed, or its owner has most waiting
    std::vector<Task> displaced;  // of other owners; they wait no more
  };
  /// `bytes` count from here until finished().
  Pushed push(const std::string& owner, Task task, std::size_t bytes = 0) {
    Pushed result;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || bytes > max_bytes_) return result;
      while (size_ >= most_ || bytes_ > max_bytes_ - bytes) {
        if (!displace(owner, bytes, size_ < most_, result.displaced)) return result;
      }
      auto [at, fresh] = owners_.try_emplace(owner);
      if (fresh) {
        turns_.push_back({owner, {}});
        at->second = std::prev(turns_.end());
      }
      at->second->tasks.push_back({std::move(task), bytes});
      at->second->bytes += bytes;
      bytes_ += bytes;
      ++size_;
    }
    changed_.notify_one();
    result.taken = true;
    return result;
  }

  /// Waits for a task; nothing once the queue is closed, whatever is left in it.
  std::optional<Task> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || size_ > 0; });
    if (closed_) return std::nullopt;
    const auto owner = turns_.begin();
    std::optional<Task> task(std::move(owner->tasks.front().task));
    owner->bytes -= owner->tasks.front().bytes;
    owner->tasks.pop_front();
    --size_;
    if (owner->tasks.empty()) {
      forget(owner);
    } else {
      turns_.splice(turns_.end(), turns_, owner);
    }
    return task;
  }

  /// A task that was popped needs its memory no more.
  void finished(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ -= bytes;
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  struct Waiting {
    Task task;
    std::size_t bytes = 0;
  };
  struct Owner {
    std::string name;
    std::deque<Waiting> tasks;  // never empty
    std::size_t bytes = 0;      // of these
    std::size_t load(bool by_bytes) const { return by_bytes ? bytes : tasks.size(); }
  };
  using Turn = typename std::list<Owner>::iterator;

  /// Takes the latest task of the owner with most waiting. False: with a further task of `bytes`
  /// nobody would have more than `owner`. Mutex held.
  bool displace(const std::string& owner, std::size_t bytes, bool by_bytes,
                std::vector<Task>& displaced) {
    const auto own = owners_.find(owner);
    const std::size_t load = (own == owners_.end() ? 0 : own->second->load(by_bytes)) +
                             (by_bytes ? bytes : std::size_t{1});
    Turn most = turns_.end();
    for (Turn at = turns_.begin(); at != turns_.end(); ++at) {
      if (at->load(by_bytes) > (most == turns_.end() ? load : most->load(by_bytes))) most = at;
    }
    if (most == turns_.end()) return false;
    displaced.push_back(std::move(most->tasks.back().task));
    most->bytes -= most->tasks.back().bytes;
    bytes_ -= most->tasks.back().bytes;
    most->tasks.pop_back();
    --size_;
    if (most->tasks.empty()) forget(most);
    return true;
  }

  void forget(Turn owner) {
    owners_.erase(owner->name);
    turns_.erase(owner);
  }

  const std::size_t most_;
  const std::size_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Owner> turns_;  // whose turn is next comes first
  std::unordered_map<std::string, Turn> owners_;
  std::size_t size_ = 0;
  std::size_t bytes_ = 0;
  bool closed_ = false;
};

}  // namespace baton
