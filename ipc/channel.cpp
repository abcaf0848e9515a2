#include "ipc/channel.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "ipc/process.h"

namespace baton {

Poller::Poller() = default;
Poller::~Poller() = default;

Poller::Index Poller::add(Pollable& channel) {
  channels_.push_back(&channel);
  entries_.push_back({channel.fd(), POLLIN, 0});
  ready_.push_back(0);
  return channels_.size() - 1;
}

Poller::Index Poller::add_fd(int fd, short events) {
  channels_.push_back(nullptr);
  entries_.push_back({fd, events, 0});
  ready_.push_back(0);
  return channels_.size() - 1;
}

void Poller::clear() {
  channels_.clear();
  entries_.clear();
  ready_.clear();
}

short Poller::revents(Index index) const {
  return index < ready_.size() ? ready_[index] : short{0};
}

/// A channel is ready when it says so, whatever poll() thinks of its descriptor.
int Poller::collect() {
  int count = 0;
  for (Index i = 0; i < entries_.size(); ++i) {
    if (channels_[i] != nullptr) {
      ready_[i] = channels_[i]->readable() ? short{POLLIN} : short{0};
    } else {
      ready_[i] = entries_[i].revents;
    }
    count += ready_[i] != 0 ? 1 : 0;
  }
  return count;
}

int Poller::wait(TimeNs timeout) {
  const bool forever = timeout == kForever;
  const TimeNs deadline = forever ? 0 : now_ns() + std::max<TimeNs>(timeout, 0);
  // A message that is there already makes no edge: look before sleeping.
  bool pending = false;
  for (Index i = 0; i < entries_.size(); ++i) {
    entries_[i].revents = 0;
    if (channels_[i] != nullptr) {
      entries_[i].fd = channels_[i]->fd();
      pending = channels_[i]->readable() || pending;
    }
  }
  for (;;) {
    const bool look = pending || spin_.again();
    const TimeNs left = look ? 0 : std::max<TimeNs>(forever ? kSecond : deadline - now_ns(), 0);
    const timespec limit{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
    const int woken = ::ppoll(entries_.data(), entries_.size(), &limit, nullptr);
    if (woken < 0) {  // EINTR: the caller comes round early
      for (pollfd& entry : entries_) {
        entry.revents = 0;
      }
    }
    const int count = collect();
    if (count > 0) spin_.heard();
    // An edge without a message (the library's own housekeeping) is no reason to return.
    if (count > 0 || woken < 0 || pending || (!forever && now_ns() >= deadline)) {
      return count;
    }
  }
}

}  // namespace baton
