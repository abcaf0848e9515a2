// One client's connection as two threads share it: Pistache's thread reads requests, the front end's
// loop writes replies. `phase` says whose turn it is; everything else belongs to one of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "frontend/http/http_framing.h"
#include "ipc/process.h"
#include "ipc/types.h"

namespace baton {

enum class ConnectionPhase : std::uint8_t {
  reading,         // Pistache's thread collects a request
  replying,        // the loop owes a reply; bytes that arrive now cannot be served
  replying_extra,  // some did arrive (a pipelined request): close after the reply
  closing,         // nothing more will be read or written
};

class ClientConnection {
 public:
  /// `fd` is a duplicate of the socket that Pistache reads: Pistache may close its own at any moment,
  /// and the number stays ours.
  ClientConnection(std::uint64_t id, UniqueFd fd, const FramingLimits& limits, TimeNs now)
      : reader(limits), id_(id), fd_(std::move(fd)), since_(now) {}

  /// Whom it connects, set before anybody else sees it.
  std::string peer = "?";     // the client's address, of IPv6 the /64 that a client has to itself
  std::string address = "?";  // the whole of it and the port, for the log
  bool local = false;         // the port listens on the loopback alone

  std::uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }

  ConnectionPhase phase() const { return phase_.load(std::memory_order_acquire); }

  /// A whole request was read (Pistache's thread), or it took too long (the reaper). Only one of them
  /// gets true, and owes a reply.
  bool begin_reply(TimeNs now) {
    since_.store(now, std::memory_order_relaxed);
    auto expected = ConnectionPhase::reading;
    return phase_.compare_exchange_strong(expected, ConnectionPhase::replying);
  }
  /// Pistache's thread: bytes arrived out of turn. False if the turn has changed: they may be read.
  bool note_extra() {
    auto expected = ConnectionPhase::replying;
    if (phase_.compare_exchange_strong(expected, ConnectionPhase::replying_extra)) return true;
    return expected != ConnectionPhase::reading;
  }
  /// Loop, just before the last bytes of a reply go out: the client may send the next request. False
  /// if bytes of it were already thrown away, so that the connection must be closed.
  bool begin_reading(TimeNs now) {
    since_.store(now, std::memory_order_relaxed);
    auto expected = ConnectionPhase::replying;
    return phase_.compare_exchange_strong(expected, ConnectionPhase::reading);
  }
  /// Either: no more requests.
  void begin_closing(TimeNs now) {
    since_.store(now, std::memory_order_relaxed);
    phase_.store(ConnectionPhase::closing, std::memory_order_release);
  }

  /// When the phase began, or bytes of a request last arrived.
  TimeNs since() const { return since_.load(std::memory_order_relaxed); }
  void touch(TimeNs now) { since_.store(now, std::memory_order_relaxed); }

  /// Reader's state for the reaper's eyes (another thread): when the request at hand began, 0: none.
  std::atomic<TimeNs> request_began{0};
  std::atomic<bool> in_body{false};

  // Pistache's thread only.
  RequestReader reader;
  std::size_t discarded = 0;
  bool refused = false;     // the reply says what was wrong, then closes
  std::size_t counted = 0;  // bytes of `reader` in the server's sum

 private:
  const std::uint64_t id_;
  const UniqueFd fd_;
  std::atomic<TimeNs> since_;
  std::atomic<ConnectionPhase> phase_{ConnectionPhase::reading};
};

}  // namespace baton
