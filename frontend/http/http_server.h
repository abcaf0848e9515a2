// The HTTP side of the front end: listens, parses, routes; never writes. http_server.cpp is the only
// file that includes Pistache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "frontend/http/client_connection.h"
#include "frontend/http/http_framing.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  int threads = 2;
  FramingLimits framing;
  std::size_t max_connections = 8192;
  std::size_t max_partial_bytes = std::size_t{256} << 20;  // unfinished requests of all clients
  TimeNs head_timeout = 15 * kSecond;       // first byte of a request -> its last header
  TimeNs body_timeout = 30 * kSecond;       // between two pieces of a body
  TimeNs keep_alive_timeout = 75 * kSecond; // between two requests
  TimeNs closing_timeout = 2 * kSecond;     // a client that was told to go
};

/// One route. `path` as Pistache's router takes it: "/v1/models/:id"; HEAD follows GET.
struct HttpRoute {
  std::string method;
  std::string path;
  std::string name;  // for metrics
  /// Runs on one of Pistache's threads. Must lead to one reply through the loop.
  std::function<void(const std::shared_ptr<ClientConnection>&, HttpRequest)> handle;
};

/// What the server hands over besides routed requests; all on Pistache's threads.
struct HttpEvents {
  /// No route: `allowed` lists the methods that the path knows (empty: an unknown path).
  std::function<void(const std::shared_ptr<ClientConnection>&, HttpRequest, const std::string& allowed)>
      unrouted;
  /// The bytes are no acceptable request. `request` holds what was understood.
  std::function<void(const std::shared_ptr<ClientConnection>&, const HttpRequest&,
                     const FramingFault&)>
      refused;
  /// The client waits for `100 Continue`.
  std::function<void(const std::shared_ptr<ClientConnection>&)> expects_continue;
};

struct HttpServerCounters {
  std::uint64_t accepted = 0;
  std::uint64_t open = 0;
  std::uint64_t evicted = 0;    // idle ones closed to make room
  std::uint64_t timed_out = 0;  // too slow with a request
};

class HttpServer {
 public:
  HttpServer(HttpServerOptions options, std::vector<HttpRoute> routes, HttpEvents events);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Binds and starts the threads. The error names the address.
  Status start();
  /// The port that was bound (options.port may be 0).
  std::uint16_t port() const;
  /// New connections are refused and nothing more is read. Replies under way are not touched.
  void stop();
  /// Closes connections that are too slow or idle for too long. Call it every second or so.
  void reap(TimeNs now);
  HttpServerCounters counters() const;

  class Impl;  // Pistache's side

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
