// Tells routers what the workers' pools hold, and takes what they ask for again.
#pragma once

#include <memory>
#include <string>

#include "configs/config.h"
#include "ipc/status.h"
#include "ipc/zmq_publisher.h"
#include "scheduler/state/cluster_state.h"

namespace baton {

class KvPublisher {
 public:
  static Result<KvPublisher> bind(const Config& config);

  /// What has happened to the pools since the last call. Once a turn.
  /// `wall`: unix time.
  void publish(State& state, TimeNs wall);

 private:
  KvPublisher(const Config& config, std::unique_ptr<Publisher> socket);
  std::string topic(const std::string& worker) const;

  std::unique_ptr<Publisher> socket_;
  std::string pod_;
  std::string model_;
  bool arrays_ = false;
};

}  // namespace baton
