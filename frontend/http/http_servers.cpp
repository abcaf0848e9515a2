#include "frontend/http/http_servers.h"

namespace baton {

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
  }
  return sum;
}

}  // namespace baton
