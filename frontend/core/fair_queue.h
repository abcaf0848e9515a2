// Tasks of several owners that wait for a few threads: owners take turns, and each one's tasks keep
// their order, so that whoever brings many delays himself. Bounded.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace baton {

/// Thread-safe.
template <typename Task>
class FairQueue {
 public:
  /// At most `most` tasks wait.
  explicit FairQueue(std::size_t most) : most_(most) {}

  /// False when it is full, or closed: the task is dropped.
  bool push(const std::string& owner, Task task) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || size_ >= most_) return false;
      auto [at, fresh] = owners_.try_emplace(owner);
      if (fresh) {
        turns_.push_back({owner, {}});
        at->second = std::prev(turns_.end());
      }
      at->second->tasks.push_back(std::move(task));
      ++size_;
    }
    changed_.notify_one();
    return true;
  }

  /// Waits for a task; nothing once the queue is closed, whatever is left in it.
  std::optional<Task> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || size_ > 0; });
    if (closed_) return std::nullopt;
    const auto owner = turns_.begin();
    std::optional<Task> task(std::move(owner->tasks.front()));
    owner->tasks.pop_front();
    --size_;
    if (owner->tasks.empty()) {
      owners_.erase(owner->name);
      turns_.erase(owner);
    } else {
      turns_.splice(turns_.end(), turns_, owner);
    }
    return task;
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  struct Owner {
    std::string name;
    std::deque<Task> tasks;  // never empty
  };

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Owner> turns_;  // whose turn is next comes first
  std::unordered_map<std::string, typename std::list<Owner>::iterator> owners_;
  std::size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace baton
