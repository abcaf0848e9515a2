// From clients' sockets to whole requests at their handlers, in each connection's order; and how
// much of what is not whole yet all clients, and each address, may hold. Whoever waits for sockets
// says which one may be read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "frontend/core/work_pool.h"
#include "frontend/http/client_connection.h"
#include "frontend/http/http_framing.h"
#include "frontend/http/route_table.h"
#include "ipc/types.h"

namespace baton {

struct IntakeOptions {
  FramingLimits framing;
  std::size_t max_connections = 8192;
  std::size_t max_partial_bytes = std::size_t{256} << 20;  // unfinished requests of all clients
  double peer_share = 1;                                   // of both: what one address may have
  bool local = true;                                       // the port listens on the loopback alone
  TimeNs head_timeout = 15 * kSecond;        // first byte of a request -> its last header
  TimeNs body_timeout = 30 * kSecond;        // between two pieces of a body
  TimeNs keep_alive_timeout = 75 * kSecond;  // between two requests
  TimeNs closing_timeout = 2 * kSecond;      // a client that was told to go
  /// Reads requests that came before the replies to earlier ones were out. null: the loop's thread
  /// does.
  WorkPool* pool = nullptr;
  /// Where bytes are read to, so that they outlive this process. null: nothing does.
  InputJournal* journal = nullptr;
};

/// Bytes that no connection owns for so long are a fault of the accounting.
inline constexpr TimeNs kUnownedPatience = 10 * kSecond;

/// What the server hands over besides routed requests, on whichever thread read them.
struct HttpEvents {
  /// No route: `allowed` lists the methods that the path knows (empty: an unknown path).
  std::function<void(const std::shared_ptr<ClientConnection>&, HttpRequest,
                     const std::string& allowed)>
      unrouted;
  /// The bytes are no acceptable request. `request` holds what was understood.
  std::function<void(const std::shared_ptr<ClientConnection>&, const HttpRequest&,
                     const FramingFault&)>
      refused;
  /// The client waits for `100 Continue`.
  std::function<void(const std::shared_ptr<ClientConnection>&)> expects_continue;
  /// Whether a request whose head this is is worth its body. False: its handler gets it without
  /// one, and refuses it. Pure.
  std::function<bool(const ClientConnection&, const HttpRequest&)> worth_a_body;
};

struct HttpServerCounters {
  std::uint64_t accepted = 0;
  std::uint64_t open = 0;
  std::uint64_t evicted = 0;    // idle ones closed to make room, unfinished requests to make memory
  std::uint64_t timed_out = 0;  // too slow with a request
  std::size_t held_bytes = 0;   // of requests that are not whole, wait, or are being answered
  std::size_t unowned_bytes = 0;  // of those, counted for no connection: for kUnownedPatience now
};

/// Thread-safe.
class RequestIntake {
 public:
  using Connection = std::shared_ptr<ClientConnection>;

  RequestIntake(IntakeOptions options, std::vector<HttpRoute> routes, HttpEvents events)
      : options_(options), routes_(std::move(routes)), events_(std::move(events)) {}

  /// Takes a client in; null: there is no room, and its socket is closed.
  Connection admit(UniqueFd fd);
  /// The same of a client that another process had. `start` says how far it has got; what that
  /// process had read of it comes by inherit().
  Connection admit(UniqueFd fd, const InputStart& start);
  /// Reads what its socket has, some of it at a time. False: it has ended, or failed: end() is due.
  /// Called by one thread at a time for each connection.
  bool read(const Connection& connection);
  /// Bytes that another process had read, before any that read() finds. `lost`: there were more,
  /// which nobody has. `told_to_go_on`: it got its `100 Continue`.
  void inherit(const Connection& connection, std::string_view bytes, bool lost,
               bool told_to_go_on);
  /// The same, of a client whose first request is being answered already.
  void inherit_answering(const Connection& connection, std::string_view bytes, bool lost);
  /// For tests: as if the socket had had these bytes.
  void take(const Connection& connection, std::string_view bytes);
  /// It will send nothing more; what it is owed it still gets.
  void end(const Connection& connection);
  /// Reads what came before its turn.
  void resume(const Connection& connection);

  /// No new clients; those without a request under way are closed.
  void stop();
  /// Closes connections that are too slow or idle for too long.
  void reap(TimeNs now);
  HttpServerCounters counters() const;

 private:
  struct Outcome;

  void take_some(const Connection& connection, std::string_view bytes, Outcome& outcome);
  void feed(const Connection& connection, std::string_view bytes, Outcome& outcome);
  void keep(ClientConnection& connection, std::string_view bytes);
  void discard(ClientConnection& connection, std::size_t size);
  void hand_over(const Connection& connection, Outcome outcome);
  void relieve(const ClientConnection& connection);
  bool evict_one(const PeerUse* of);
  bool evict(const Connection& connection);
  void look_for_unowned(TimeNs now);
  void forget_ended();
  void make_room(std::size_t wanted, const PeerUse* of);
  void forget(ClientConnection& connection);
  void resume_now(const Connection& connection);
  void refuse_turn(const Connection& connection);
  template <typename Work>
  void guarded(const Connection& connection, Work work);
  std::size_t share_of(std::size_t all) const;

  const IntakeOptions options_;
  const RouteTable routes_;
  const HttpEvents events_;
  const std::shared_ptr<ByteLedger> held_ = std::make_shared<ByteLedger>();

  mutable std::mutex
      mutex_;  // guards what follows; a connection's `input` may be taken while it is held
  std::unordered_map<std::uint64_t, Connection> connections_;
  std::unordered_map<std::string, std::shared_ptr<PeerUse>> peers_;
  HttpServerCounters counters_;
  TimeNs unowned_since_ = 0;       // 0: every byte has an owner
  std::size_t unowned_least_ = 0;  // since then
  bool stopped_ = false;
};

}  // namespace baton
