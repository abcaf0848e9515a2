// The HTTP servers of one front end, one a port, as the loop sees them: together.
#pragma once

#include <memory>
#include <vector>

#include "frontend/http/http_server.h"

namespace baton {

class HttpServers {
 public:
  /// Before start().
  void add(HttpServerOptions options, std::vector<HttpRoute> routes, HttpEvents events) {
    servers_.push_back(
        std::make_unique<HttpServer>(std::move(options), std::move(routes), std::move(events)));
  }
  /// Binds every port; the first one that cannot be bound is the error. `inherited`: sockets that
  /// another process listened with; each goes to the server of its port (port 0 takes any), and
  /// what is left of them is closed.
  Status bind(std::vector<UniqueFd> inherited = {});
  /// Starts them all.
  Status start();
  /// The server that clients of this port talk to; null: none.
  HttpServer* at_port(std::uint16_t port);
  std::size_t size() const { return servers_.size(); }
  /// The port that the server bound.
  std::uint16_t port(std::size_t server = 0) const { return servers_[server]->port(); }

  // As HttpServer has them.
  void stop();
  void reap(TimeNs now);
  HttpServerCounters counters() const;

 private:
  std::vector<std::unique_ptr<HttpServer>> servers_;
};

}  // namespace baton
