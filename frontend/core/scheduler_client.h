// The front end's messages over its channel to the scheduler. No HTTP, no state of requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ipc/channel.h"
#include "ipc/messages.h"
#include "ipc/status.h"

namespace baton {

struct SchedulerClientCounters {
  std::uint64_t sent = 0;
  std::uint64_t unsent = 0;  // no connection, or its queue was full
  std::uint64_t received = 0;
  std::uint64_t undecodable = 0;
};

/// Loss is no error here: the request table's heartbeats heal whatever did not arrive.
class SchedulerClient {
 public:
  explicit SchedulerClient(std::unique_ptr<ClientChannel> channel);

  void send(const FrontendMessage& message);
  /// The next message, or nothing. What cannot be decoded is counted, logged by the caller from
  /// last_error(), and skipped.
  std::optional<ToFrontend> receive();
  /// The latest decoding error since the last call; empty if there was none.
  std::string take_error();

  Pollable& channel() { return *channel_; }
  const SchedulerClientCounters& counters() const { return counters_; }

 private:
  std::unique_ptr<ClientChannel> channel_;
  std::string bytes_;
  std::string error_;
  SchedulerClientCounters counters_;
};

}  // namespace baton
