// One client's connection as several threads share it: whoever has the reader's turn collects a
// request, the front end's loop writes replies. `phase` says whose turn it is.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "frontend/http/byte_ledger.h"
#include "frontend/http/http_framing.h"
#include "frontend/succession/input_journal.h"
#include "ipc/process.h"
#include "ipc/types.h"

namespace baton {

enum class ConnectionPhase : std::uint8_t {
  reading,   // a request is collected as its bytes come
  replying,  // the loop owes a reply; bytes that arrive now wait
  resuming,  // a thread is about to read what waited
  closing,   // nothing more will be read or written
};

class ClientConnection {
 public:
  ClientConnection(std::uint64_t id, UniqueFd fd, const FramingLimits& limits, TimeNs now)
      : reader(limits), id_(id), fd_(std::move(fd)), since_(now) {}

  // Set before anybody else sees it.
  std::string peer = "?";     // the client's address, of IPv6 the /64 that a client has to itself
  std::string address = "?";  // the whole of it and the port, for the log
  bool local = false;         // the port listens on the loopback alone
  std::shared_ptr<PeerUse> use = std::make_shared<PeerUse>();
  /// Has what waits in the backlog read; the phase is then `resuming`.
  std::function<void(const std::shared_ptr<ClientConnection>&)> resume = {};

  std::uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }

  ConnectionPhase phase() const { return phase_.load(std::memory_order_acquire); }

  /// A request is answered from now on: it was read whole, it took too long, or its memory is
  /// needed. Only one caller gets true, and owes a reply.
  bool begin_reply(TimeNs now) {
    since_.store(now, std::memory_order_relaxed);
    return change_phase(ConnectionPhase::reading, ConnectionPhase::replying) ||
           change_phase(ConnectionPhase::resuming, ConnectionPhase::replying);
  }

  /// What it has sent beyond this is never read; a reply that says so, and closes, is owed.
  void refuse_rest() {
    const std::lock_guard lock(input);
    refused = true;
    begin_reply(since());
    recount();
  }

  enum class Turn : std::uint8_t { read, resume, close };
  /// Loop, when the last bytes of a reply go out and the client may ask again. read: its bytes are
  /// awaited; resume: some are here, call resume(); close: none will be read.
  Turn end_reply(TimeNs now) {
    const std::lock_guard lock(input);
    since_.store(now, std::memory_order_relaxed);
    if (phase() != ConnectionPhase::replying || refused) return Turn::close;
    if (backlog.empty() && (lost || ended)) return Turn::close;
    const Turn turn = backlog.empty() ? Turn::read : Turn::resume;
    // Another thread may have cut it off meanwhile.
    if (!change_phase(ConnectionPhase::replying,
                      turn == Turn::read ? ConnectionPhase::reading : ConnectionPhase::resuming)) {
      return Turn::close;
    }
    kept.answered(request_bytes, put);
    recount();
    return turn;
  }
  /// Called when it holds more or less. `input` held.
  void recount() {
    held.set(phase() == ConnectionPhase::closing
                 ? 0
                 : std::max(reader.held() + backlog.size(), kept.size()));
  }
  /// Phase closing: nothing of it will be read or answered any more, and its memory is given back.
  void release() {
    const std::lock_guard lock(input);
    reader.reset();
    free_memory(backlog);
    kept.drop();
    held.set(0);
  }
  /// What waited is read, and is no whole request yet. `input` held.
  void await_more(TimeNs now) {
    since_.store(now, std::memory_order_relaxed);
    change_phase(ConnectionPhase::resuming, ConnectionPhase::reading);
  }
  /// Any thread: no more requests.
  void begin_closing(TimeNs now) {
    since_.store(now, std::memory_order_relaxed);
    phase_.store(ConnectionPhase::closing, std::memory_order_release);
  }

  /// Any thread: at once, whatever is owed.
  void cut_off(TimeNs now) {
    begin_closing(now);
    shutdown(fd(), SHUT_RDWR);
  }

  /// When the phase began, or bytes of a request last arrived.
  TimeNs since() const { return since_.load(std::memory_order_relaxed); }
  void touch(TimeNs now) { since_.store(now, std::memory_order_relaxed); }

  // For other threads' eyes: when the request at hand began, 0: none; how far it is; what it and
  // the backlog hold; HTTP/1.<minor> of the last whole one.
  std::atomic<TimeNs> request_began{0};
  std::atomic<bool> in_body{false};
  ByteCharge held;
  std::atomic<int> minor{1};

  /// Loop: bytes that it was ever sent, or that wait to be.
  std::uint64_t put = 0;

  std::mutex input;  // guards what follows
  InputSlot kept;    // goes after the socket: one that is open has its slot
  RequestReader reader;
  std::size_t taken = 0;          // of the request at hand, as it came
  TimeNs first_byte = 0;          // of the request that is being answered
  std::size_t request_bytes = 0;  // of the one that is being answered, as it came
  std::string backlog;        // what came behind the request that is being answered
  bool lost = false;          // some of that was thrown away
  bool ended = false;         // the client sends nothing more
  bool refused = false;       // the reply says what was wrong, then closes
  std::size_t discarded = 0;  // bytes that nobody read

 private:
  bool change_phase(ConnectionPhase from, ConnectionPhase to) {
    return phase_.compare_exchange_strong(from, to);
  }

  const std::uint64_t id_;
  const UniqueFd fd_;
  std::atomic<TimeNs> since_;
  std::atomic<ConnectionPhase> phase_{ConnectionPhase::reading};
};

}  // namespace baton
