#include "frontend/http/http_servers.h"

#include <algorithm>
#include <utility>

namespace baton {

Status HttpServers::bind(std::vector<UniqueFd> inherited) {
  for (const auto& server : servers_) {
    const std::uint16_t wanted = server->wanted_port();
    const auto at = std::find_if(inherited.begin(), inherited.end(), [wanted](const UniqueFd& fd) {
      return fd && (wanted == 0 || HttpServer::port_of(fd.get()) == wanted);
    });
    if (at != inherited.end()) {
      server->bind(std::move(*at));
    } else if (Status status = server->bind(); !status.ok()) {
      return status;
    }
  }
  return {};
}

HttpServer* HttpServers::at_port(std::uint16_t port) {
  for (const auto& server : servers_) {
    if (server->port() == port) return server.get();
  }
  return nullptr;
}

Status HttpServers::start() {
  for (const auto& server : servers_) {
    Status status = server->start();
    if (!status.ok()) return status;
  }
  return {};
}

void HttpServers::stop() {
  for (const auto& server : servers_) server->stop();
}

void HttpServers::reap(TimeNs now) {
  for (const auto& server : servers_) server->reap(now);
}

HttpServerCounters HttpServers::counters() const {
  HttpServerCounters sum;
  for (const auto& server : servers_) {
    const HttpServerCounters one = server->counters();
    sum.accepted += one.accepted;
    sum.open += one.open;
    sum.evicted += one.evicted;
    sum.timed_out += one.timed_out;
    sum.held_bytes += one.held_bytes;
    sum.unowned_bytes += one.unowned_bytes;
  }
  return sum;
}

}  // namespace baton
