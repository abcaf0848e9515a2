// The HTTP side of the front end: listens, reads, routes; never writes. Pistache's reactor runs the
// threads and tells them which sockets are ready; http_server.cpp is the only file that includes
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/http/request_intake.h"
#include "ipc/process.h"
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

  /// Binds. The error names the address.
  Status bind();
  /// The same with a socket that another process bound and left.
  void bind(UniqueFd listener);
  /// Takes in what another process had accepted, before start(). null: there is no room.
  RequestIntake::Connection adopt(UniqueFd fd, const InputStart& start);
  /// Starts the threads: clients are accepted and read.
  Status start();
  RequestIntake& intake();
  /// That of the options; 0: any.
  std::uint16_t wanted_port() const;
  /// The port that was bound.
  std::uint16_t port() const;
  /// New connections are refused and nothing more is read. Replies under way are not touched.
  void stop();
  /// Closes connections that are too slow or idle for too long. Call it every second or so.
  void reap(TimeNs now);
  HttpServerCounters counters() const;

  class Impl;  // Pistache's side
  static std::uint16_t port_of(int fd);  // that a socket is bound to; 0: none

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
