#include "frontend/core/live_feed.h"

#include <chrono>
#include <utility>

#include "ipc/admin_client.h"

namespace baton {
namespace {

/// More than `show live` ever says: what is longer is no answer to it.
constexpr std::size_t kMostBytes = 192 * 1024;

}  // namespace

LiveFeed::LiveFeed(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

LiveFeed::~LiveFeed() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void LiveFeed::watch(bool wanted) {
  if (wanted == told_) return;
  told_ = wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted_ = wanted;
    if (!wanted) {
      newest_ = nullptr;
      fresh_.store(false);
      waker_.clear();  // nobody wakes it any more: that takes the lock
    }
  }
  changed_.notify_one();
}

std::shared_ptr<const std::string> LiveFeed::take() {
  if (!fresh_.load()) return nullptr;
  waker_.clear();
  const std::lock_guard lock(mutex_);
  fresh_.store(false);
  return std::exchange(newest_, nullptr);
}

std::string LiveFeed::ask(UniqueFd& socket) const {
  if (!socket) socket = connect_admin(options_.admin_socket);
  if (!socket) return kAway;
  auto answer = ask_admin(socket.get(), "show live json", options_.patience);
  if (!answer || answer->size() > kMostBytes || answer->empty() || answer->front() != '{') {
    socket.reset();
    return kAway;
  }
  while (!answer->empty() && answer->back() == '\n') answer->pop_back();
  return answer->find_first_of("\r\n") == std::string::npos ? std::move(*answer) : kAway;
}

void LiveFeed::run() {
  UniqueFd socket;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!wanted_) {
      socket.reset();
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    auto answer = std::make_shared<const std::string>(ask(socket));
    lock.lock();
    if (stop_) return;
    if (wanted_) {
      newest_ = std::move(answer);
      fresh_.store(true);
      waker_.wake();
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(options_.every),
                      [this] { return stop_ || !wanted_; });
  }
}

}  // namespace baton
