// Numbered messages for whoever listens, over ZeroMQ, and the last of them again for whoever asks:
// the way in which vLLM tells routers of its cache.
//
//   PUB: topic, number (8 bytes, big-endian, from 0), payload. Nobody is waited for: what does not
//        fit a listener's queue is lost to it, and the next number shows that.
//        Subscriptions cost memory for as long as their connection lives: connections, the topics
//        of each and their bytes are bounded (PublisherLimits). Who asks for more loses its
//        connection.
//   ROUTER: the client (DEALER or REQ) sends an empty frame and the number to begin from. It gets
//        an empty frame, number and payload of each message that is still kept, then number -1 with
//        an empty payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ipc/status.h"

namespace baton {

struct PublisherLimits {
  std::size_t messages = 10'000;          // kept, and queued for one listener
  std::size_t bytes = std::size_t{64} << 20;  // kept
  std::size_t replays = 16;               // under way at once; more are not answered
  std::size_t subscribers = 64;           // connections to the PUB socket; more are closed
  std::size_t topics = 64;                // of one of them; with more it is closed
  std::size_t topic_bytes = 4096;         // ... all of them together
};

class Publisher {
 public:
  virtual ~Publisher() = default;
  virtual void publish(const std::string& topic, std::string payload) = 0;
  /// Takes new subscriptions, and closes connections that are beyond the limits. Like
  /// serve_replays().
  virtual void serve_subscribers() = 0;
  /// Goes on with replays that were asked for, never waiting. To be called every few milliseconds.
  virtual void serve_replays() = 0;
};

/// Endpoints as ZeroMQ writes them: "tcp://127.0.0.1:5557", "tcp://*:5557", "ipc:///path".
/// `replay_endpoint` empty: nothing can be asked for.
Result<std::unique_ptr<Publisher>> bind_publisher(const std::string& endpoint,
                                                  const std::string& replay_endpoint,
                                                  const PublisherLimits& limits = {});

}  // namespace baton
