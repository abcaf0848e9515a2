// Tasks that wait for a few threads: first in, first out, bounded.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace baton {

/// Thread-safe.
template <typename Task>
class TaskQueue {
 public:
  explicit TaskQueue(std::size_t most) : most_(most) {}

  /// False when it is full, or closed: the task is dropped.
  bool push(Task task) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || tasks_.size() >= most_) return false;
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
    return true;
  }

  /// Waits for a task; nothing once the queue is closed, whatever is left in it.
  std::optional<Task> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    if (closed_) return std::nullopt;
    std::optional<Task> task(std::move(tasks_.front()));
    tasks_.pop_front();
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
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool closed_ = false;
};

}  // namespace baton
