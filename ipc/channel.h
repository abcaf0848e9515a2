// How bytes travel between processes, without saying by what: interfaces, counters and a poller.
// ipc/zmq_channel.h makes the real ones, tests/fakes/fake_channel.h the ones for tests.
//
// A channel belongs to one thread. Nothing here blocks except Poller::wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/spin.h"
#include "ipc/types.h"

struct pollfd;

namespace baton {

enum class SendResult : std::uint8_t {
  ok,           // queued; it arrives unless the link breaks
  again,        // nothing was queued: the queue is full or there is no connection now
  unreachable,  // server only: no such peer (never there, or gone)
  too_large,    // beyond ChannelOptions::max_message_bytes: nothing was sent; a fault of the caller
};

struct ChannelCounters {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_received = 0;
};

/// Something a Poller can wait for.
///
/// fd() is only a hint that something has changed: it is edge-triggered (ZMQ_FD), may become
/// readable without a message, and stays silent about messages that arrived before the last call on
/// the channel. readable() is the truth. So whoever waits without a Poller asks readable() first,
/// waits on fd() only if it said no, and asks again afterwards. Poller::wait does just that.
class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual int fd() const = 0;
  /// True when receive() would return a message now.
  virtual bool readable() = 0;
};

/// The side with a well-known address and many peers.
class ServerChannel : public Pollable {
 public:
  /// `routing_id` is what receive() gave: ZeroMQ's name of one connection. Order is kept for each.
  virtual SendResult send(const std::string& routing_id, std::string_view bytes) = 0;
  /// False when there is nothing. The strings' capacity is reused.
  virtual bool receive(std::string& routing_id, std::string& bytes) = 0;
  virtual ChannelCounters counters() const = 0;
};

/// The side that connects, and keeps on trying to.
class ClientChannel : public Pollable {
 public:
  virtual SendResult send(std::string_view bytes) = 0;
  virtual bool receive(std::string& bytes) = 0;
  virtual ChannelCounters counters() const = 0;
};

/// Waits for channels and plain file descriptors together, to the nanosecond; while there is work
/// it may look again instead of sleeping (ipc/spin.h).
///
///   Poller poller;
///   const auto workers = poller.add(worker_channel);
///   const auto admin = poller.add_fd(admin_fd);
///   while (running) {
///     poller.wait(next_deadline - now_ns());
///     if (poller.ready(workers)) ...
///   }
///
/// Keeps no ownership: what was added must outlive the next clear().
class Poller {
 public:
  using Index = std::size_t;

  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  Index add(Pollable& channel);
  /// `events` as in poll(2); the default is POLLIN.
  Index add_fd(int fd, short events = 0x001);
  /// Forgets everything that was added; indices start at 0 again. Cheap: call it every round if the
  /// set of descriptors changes.
  void clear();

  /// Until something is ready or `timeout` has passed; 0 or less: only looks. kForever: no
  /// time-out. Returns the number of entries that are ready; a signal counts as a time-out that
  /// came early.
  int wait(TimeNs timeout);
  static constexpr TimeNs kForever = INT64_MAX;

  bool ready(Index index) const { return revents(index) != 0; }
  /// poll(2) flags of the last wait; for a channel POLLIN or 0.
  short revents(Index index) const;

 private:
  int collect();

  std::vector<Pollable*> channels_;  // parallel to entries_; null for a plain descriptor
  std::vector<pollfd> entries_;
  std::vector<short> ready_;
  Spin spin_;
};

}  // namespace baton
