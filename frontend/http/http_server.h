// The HTTP side of the front end: listens, parses, routes; never writes. http_server.cpp is the
// only file that includes Pistache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/http/request_intake.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

struct HttpServerOptions : IntakeOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  int threads = 2;
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
