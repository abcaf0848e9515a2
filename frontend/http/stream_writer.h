// Writes to clients from the loop's thread: straight to the socket, and through a bounded queue
// with epoll when the socket is full. Notices clients that leave or never read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/http/client_connection.h"
#include "ipc/process.h"
#include "ipc/types.h"

namespace baton {

struct WriterLimits {
  std::size_t buffer_bytes = 262'144;   // queued for one client, beyond which no event is added
                                        // (the last bytes of a reply may be, whatever their
                                        // size)
  TimeNs stall_timeout = 30 * kSecond;  // a queue that does not move for this long
  std::size_t total_bytes = std::size_t{64}
                            << 20;  // queued for all; then the largest and slowest is dropped
};

enum class DropReason : std::uint8_t { left, overflow, stalled };
const char* to_string(DropReason reason);

struct DroppedClient {
  std::uint64_t connection = 0;
  DropReason reason = DropReason::left;
};

struct WriterCounters {
  std::uint64_t bytes = 0;
  std::uint64_t sends = 0;
  std::uint64_t blocked = 0;  // sends that the socket did not take whole
};

/// One thread. A connection is known from open() until its last byte is out after finish(), or
/// until it is dropped; then drops() tells.
class StreamWriter {
 public:
  explicit StreamWriter(WriterLimits limits);

  /// Called when the last byte of a reply is out, or its client is dropped.
  std::function<void(const ClientConnection&)> on_end;

  /// Readable when poll() has something to do.
  int fd() const { return epoll_.get(); }

  /// A reply to this client begins (or waits to begin): from now on its leaving is noticed.
  void open(const std::shared_ptr<ClientConnection>& connection, TimeNs now);
  /// Sends now or queues. Unknown connections: ignored.
  void send(std::uint64_t connection, std::string_view bytes, TimeNs now);
  /// Bytes before a reply, such as `100 Continue`, whether or not the connection is known. A client
  /// whose socket is full does without.
  void send_interim(ClientConnection& connection, std::string_view bytes, TimeNs now);
  /// The last bytes of a reply. When everything is out the connection goes back to its reader
  /// (`keep_alive`) or is closed, and on_end is called.
  void finish(std::uint64_t connection, std::string_view bytes, bool keep_alive, TimeNs now);

  /// Handles what epoll has; does not wait.
  void poll(TimeNs now);
  /// Drops clients whose queue has not moved. Call it every second or so.
  void check_stalls(TimeNs now);
  /// After a pause of this process: clients' time to read begins anew.
  void restart_clocks(TimeNs now);
  /// Clients dropped since the last call, each once.
  std::vector<DroppedClient> take_drops();

  /// Connections whose clients sent a request before its turn, which has come; each once.
  std::vector<std::shared_ptr<ClientConnection>> take_turns() { return std::exchange(turns_, {}); }
  /// Connections that wait for a reply and whose clients send nothing more, each once. Whether
  /// these still read shows when something is sent to them.
  std::vector<std::shared_ptr<ClientConnection>> take_half_closed() {
    return std::exchange(half_closed_, {});
  }

  /// Bytes that wait for this client to read; 0 of one that is not known.
  std::size_t queued(std::uint64_t connection) const;

  std::size_t open_count() const { return outputs_.size(); }
  std::size_t queued_bytes() const { return queued_; }
  const WriterCounters& counters() const { return counters_; }

 private:
  struct Output {
    std::shared_ptr<ClientConnection> connection;
    std::string queue;
    std::size_t sent = 0;  // bytes of `queue` that are out
    TimeNs moved = 0;
    bool replying = false;
    bool close_after = false;
    bool turn_due = false;  // the client may ask again once all is out
    bool broken = false;
    bool half_closed = false;   // it sends nothing more
    std::uint32_t watched = 0;  // what epoll tells of it
  };
  using Outputs = std::unordered_map<std::uint64_t, Output>;

  std::size_t write_some(Output& output, std::string_view bytes, TimeNs now);
  void put(Outputs::iterator at, std::string_view bytes, TimeNs now);
  void flush(Outputs::iterator at, TimeNs now);
  void settle(Outputs::iterator at, TimeNs now);
  void give_turn(Output& output, TimeNs now);
  void note_half_closed(Outputs::iterator at);
  void relieve(TimeNs now);
  void watch(Outputs::iterator at);
  void drop(Outputs::iterator at, DropReason reason, TimeNs now);
  void forget(Outputs::iterator at);

  WriterLimits limits_;
  UniqueFd epoll_;
  Outputs outputs_;
  std::vector<DroppedClient> drops_;
  std::vector<std::shared_ptr<ClientConnection>> turns_, half_closed_;
  std::size_t queued_ = 0;
  WriterCounters counters_;
};

}  // namespace baton
