#include "frontend/http/stream_writer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace baton {

namespace {

/// Sent bytes that a backlog may keep before they are cut off.
constexpr std::size_t kCompactAfter = 64 * 1024;

/// What a client asked for and never reads must not fill the kernel's buffers for minutes after we
/// gave up: the last close resets the connection.
void reset_on_close(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  shutdown(fd, SHUT_RDWR);
}

/// A client that sends nothing more may have left for good, which the kernel learns when it asks.
void probe_by_kernel(int fd) {
  const int on = 1, idle_s = 15, interval_s = 5, count = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

}  // namespace

const char* to_string(DropReason reason) {
  switch (reason) {
    case DropReason::left:
      return "left";
    case DropReason::overflow:
      return "overflow";
    case DropReason::stalled:
      return "stalled";
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
  if (!fresh) {  // it waited for its reply already
    output.replying = true;
    if (output.half_closed) half_closed_.push_back(output.connection);
    return;
  }
  output.replying = true;
  output.connection = connection;
  output.moved = now;
  epoll_event event{};
  event.events = output.watched = EPOLLRDHUP;
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
  output.connection->put += bytes.size();
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

/// Asks epoll for room in the socket only while something waits for it, and tells of a client's
/// last byte once.
void StreamWriter::watch(Outputs::iterator at) {
  Output& output = at->second;
  const bool waiting = output.sent < output.queue.size();
  const std::uint32_t wanted = (output.half_closed ? 0U : EPOLLRDHUP) | (waiting ? EPOLLOUT : 0U);
  if (wanted == output.watched) return;
  output.watched = wanted;
  epoll_event event{};
  event.events = wanted;
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
  relieve(now);
}

std::size_t StreamWriter::queued(std::uint64_t connection) const {
  const auto at = outputs_.find(connection);
  return at == outputs_.end() ? 0 : at->second.queue.size() - at->second.sent;
}

void StreamWriter::send_interim(ClientConnection& connection, std::string_view bytes,
                                TimeNs now) {
  const auto at = outputs_.find(connection.id());
  if (at != outputs_.end()) {
    put(at, bytes, now);
  } else {
    const ssize_t n =
        ::send(connection.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) connection.put += static_cast<std::size_t>(n);
  }
}

void StreamWriter::finish(std::uint64_t connection, std::string_view bytes, bool keep_alive,
                          TimeNs now) {
  auto at = outputs_.find(connection);
  if (at == outputs_.end()) return;
  Output& output = at->second;
  output.replying = false;
  output.close_after = !keep_alive;
  // Not before the last byte is out: what is answered must not be forgotten while a successor may
  // have to go on with the answer. A client whose next request is here sooner waits for its turn.
  output.turn_due = keep_alive;
  put(at, bytes, now);
  at = outputs_.find(connection);
  if (at != outputs_.end()) settle(at, now);
  relieve(now);
}

void StreamWriter::give_turn(Output& output, TimeNs now) {
  output.turn_due = false;
  switch (output.connection->end_reply(now)) {
    case ClientConnection::Turn::read:
      break;
    case ClientConnection::Turn::resume:
      turns_.push_back(output.connection);
      break;
    case ClientConnection::Turn::close:
      output.close_after = true;
      break;
  }
}

/// After progress: gives the turn back, and forgets a connection that has nothing more to be
/// written.
void StreamWriter::settle(Outputs::iterator at, TimeNs now) {
  Output& output = at->second;
  const std::size_t waiting = output.queue.size() - output.sent;
  if (output.replying || waiting > 0) return;
  if (output.turn_due) give_turn(output, now);
  if (output.close_after) {
    // The other direction stays open for a moment, so that a client that is still sending a body
    // gets to read the reply instead of a reset. The server's reaper ends it.
    output.connection->begin_closing(now);
    shutdown(output.connection->fd(), SHUT_WR);
    output.connection->release();
  }
  if (on_end) on_end(*output.connection);
  forget(at);
}

/// What all clients leave unread together has a bound, too.
void StreamWriter::relieve(TimeNs now) {
  while (queued_ > limits_.total_bytes) {
    const auto cost = [now](const Output& output) {
      return static_cast<double>(output.queue.size() - output.sent) *
             static_cast<double>(now - output.moved + kMillisecond);
    };
    const auto worst = std::max_element(outputs_.begin(), outputs_.end(), [&](auto& a, auto& b) {
      return cost(a.second) < cost(b.second);
    });
    drop(worst, DropReason::overflow, now);
  }
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
    if ((event.events & (EPOLLHUP | EPOLLERR)) != 0) {
      drop(at, DropReason::left, now);
      continue;
    }
    if ((event.events & EPOLLRDHUP) != 0 && !at->second.half_closed) note_half_closed(at);
    if (at->second.sent < at->second.queue.size()) flush(at, now);
  }
}

/// The client sends nothing more. It may still read: who says all at once and shuts that direction
/// does.
void StreamWriter::note_half_closed(Outputs::iterator at) {
  Output& output = at->second;
  output.half_closed = true;
  probe_by_kernel(output.connection->fd());
  if (output.replying) half_closed_.push_back(output.connection);
  watch(at);
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
  at->second.connection->release();
  if (on_end) on_end(*at->second.connection);
  forget(at);
}

void StreamWriter::forget(Outputs::iterator at) {
  queued_ -= at->second.queue.size() - at->second.sent;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, at->second.connection->fd(), nullptr);
  outputs_.erase(at);
}

std::vector<DroppedClient> StreamWriter::take_drops() { return std::exchange(drops_, {}); }

}  // namespace baton
