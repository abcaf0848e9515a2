#include "frontend/http/stream_writer.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace baton {

namespace {

/// Sent bytes that a backlog may keep before they are cut off.
constexpr std::size_t kCompactAfter = 64 * 1024;

/// What a client asked for and never reads must not fill the kernel's buffers for minutes after we gave
/// up: the last close resets the connection.
void reset_on_close(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  shutdown(fd, SHUT_RDWR);
}

}  // namespace

const char* to_string(DropReason reason) {
  switch (reason) {
    case DropReason::left: return "left";
    case DropReason::overflow: return "overflow";
    case DropReason::stalled: return "stalled";
  }
  return "unknown";
}

StreamWriter::StreamWriter(WriterLimits limits)
    : limits_(limits), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw std::runtime_error("epoll_create1 failed");
}

void StreamWriter::open(const std::shared_ptr<ClientConnection>& connection, TimeNs now) {
  const auto [at, fresh] = outputs_.try_emplace(connection->id());
  Output& output = at->second;
  if (!fresh) {  // the end of its last reply is still in the queue
    output.replying = true;
    output.close_after = false;
    // A client that asks on and on without reading must not pile up replies.
    if (output.queue.size() - output.sent > limits_.buffer_bytes) {
      drop(at, DropReason::overflow, now);
    }
    return;
  }
  output.replying = true;
  output.connection = connection;
  output.moved = now;
  epoll_event event{};
  event.events = EPOLLRDHUP;
  event.data.u64 = connection->id();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->fd(), &event) != 0) {
    drop(at, DropReason::left, now);
  }
}

/// Bytes that the socket took; marks the output broken when there is nobody to take any.
std::size_t StreamWriter::write_some(Output& output, std::string_view bytes, TimeNs now) {
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t n = ::send(output.connection->fd(), bytes.data() + taken, bytes.size() - taken,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      ++counters_.sends;
      taken += static_cast<std::size_t>(n);
      output.moved = now;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ++counters_.blocked;
    } else {
      output.broken = true;
    }
    break;
  }
  counters_.bytes += taken;
  return taken;
}

void StreamWriter::put(Outputs::iterator at, std::string_view bytes, TimeNs now) {
  Output& output = at->second;
  const std::size_t waiting = output.queue.size() - output.sent;
  if (waiting == 0) {
    output.moved = now;
    bytes.remove_prefix(write_some(output, bytes, now));
  }
  if (output.broken) {
    drop(at, DropReason::left, now);
    return;
  }
  output.queue.append(bytes);
  queued_ += bytes.size();
  watch(at);
}

/// Asks epoll for room in the socket only while something waits for it.
void StreamWriter::watch(Outputs::iterator at) {
  Output& output = at->second;
  const bool waiting = output.sent < output.queue.size();
  if (waiting == output.wants_room) return;
  output.wants_room = waiting;
  epoll_event event{};
  event.events = waiting ? EPOLLRDHUP | EPOLLOUT : EPOLLRDHUP;
  event.data.u64 = at->first;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, output.connection->fd(), &event);
}

void StreamWriter::send(std::uint64_t connection, std::string_view bytes, TimeNs now) {
  const auto at = outputs_.find(connection);
  if (at == outputs_.end() || bytes.empty()) return;
  if (at->second.queue.size() - at->second.sent > limits_.buffer_bytes) {
    drop(at, DropReason::overflow, now);
    return;
  }
  put(at, bytes, now);
}

void StreamWriter::finish(std::uint64_t connection, std::string_view bytes, bool keep_alive,
                          TimeNs now) {
  auto at = outputs_.find(connection);
  if (at == outputs_.end()) return;
  Output& output = at->second;
  output.replying = false;
  // The turn changes before the last byte is out: the client's next request may be here at once.
  output.close_after = !keep_alive || !output.connection->begin_reading(now);
  put(at, bytes, now);
  at = outputs_.find(connection);
  if (at != outputs_.end()) settle(at, now);
}

/// After progress: forgets a connection that has nothing more to be written.
void StreamWriter::settle(Outputs::iterator at, TimeNs now) {
  Output& output = at->second;
  if (output.replying || output.sent < output.queue.size()) return;
  if (output.close_after) {
    // The other direction stays open for a moment, so that a client that is still sending a body gets
    // to read the reply instead of a reset. The server's reaper ends it.
    output.connection->begin_closing(now);
    shutdown(output.connection->fd(), SHUT_WR);
  }
  forget(at);
}

void StreamWriter::flush(Outputs::iterator at, TimeNs now) {
  Output& output = at->second;
  const std::string_view rest = std::string_view(output.queue).substr(output.sent);
  const std::size_t taken = write_some(output, rest, now);
  output.sent += taken;
  queued_ -= taken;
  if (output.broken) {
    drop(at, DropReason::left, now);
    return;
  }
  if (output.sent == output.queue.size()) {
    output.queue.clear();
    if (output.queue.capacity() > 64 * 1024) output.queue.shrink_to_fit();
    output.sent = 0;
    watch(at);
  } else if (output.sent > kCompactAfter && output.sent * 2 > output.queue.size()) {
    // A client that always lags a little must not make the queue keep all that was ever sent.
    output.queue.erase(0, output.sent);
    output.sent = 0;
  }
  settle(at, now);
}

void StreamWriter::poll(TimeNs now) {
  std::array<epoll_event, 256> events;
  const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const auto at = outputs_.find(event.data.u64);
    if (at == outputs_.end()) continue;
    if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      drop(at, DropReason::left, now);
    } else if (at->second.sent < at->second.queue.size()) {
      flush(at, now);
    }
  }
}

void StreamWriter::check_stalls(TimeNs now) {
  std::vector<std::uint64_t> stalled;
  for (const auto& [id, output] : outputs_) {
    const bool waiting = output.sent < output.queue.size();
    if (waiting && now - output.moved > limits_.stall_timeout) stalled.push_back(id);
  }
  for (const std::uint64_t id : stalled) drop(outputs_.find(id), DropReason::stalled, now);
}

void StreamWriter::restart_clocks(TimeNs now) {
  for (auto& [id, output] : outputs_) output.moved = now;
}

void StreamWriter::drop(Outputs::iterator at, DropReason reason, TimeNs now) {
  drops_.push_back({at->first, reason});
  at->second.connection->begin_closing(now);
  reset_on_close(at->second.connection->fd());
  forget(at);
}

void StreamWriter::forget(Outputs::iterator at) {
  queued_ -= at->second.queue.size() - at->second.sent;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, at->second.connection->fd(), nullptr);
  outputs_.erase(at);
}

std::vector<DroppedClient> StreamWriter::take_drops() { return std::exchange(drops_, {}); }

}  // namespace baton
