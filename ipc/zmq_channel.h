// Channels over ZeroMQ ipc:// sockets: ROUTER on the server's side, DEALER on the client's.
// zmq_channel.cpp and zmq_publisher.cpp are the only files of the server that include zmq.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/channel.h"
#include "ipc/process.h"
#include "ipc/status.h"

namespace baton {

struct ChannelOptions {
  int send_queue = 4096;     // messages for one peer; beyond: SendResult::again
  int receive_queue = 4096;  // messages from one peer; beyond, the peer's queue fills
  std::int64_t max_message_bytes = std::int64_t{64}
                                   << 20;  // a larger one costs its sender the link
};

/// Longest path of a unix socket that libzmq takes.
constexpr std::size_t kMaxSocketPath = 107;

/// Binds `socket_path` (a file in the directory that `held` locks). The lock is asked for because
/// libzmq unlinks and rebinds over a live server without a word: only the holder may bind. `held`
/// must outlive the channel. The socket file is created 0600 in a 0700 directory.
Result<std::unique_ptr<ServerChannel>> bind_server(const LockFile& held,
                                                   const std::string& socket_path,
                                                   const ChannelOptions& options = {});

/// Connects, and reconnects every 20 to 500 ms for ever; it is no error that nobody listens yet.
/// `routing_id` (1 to 255 bytes, the first not zero) must be new for every incarnation of a
/// process: see make_routing_id. While there is no connection send() says `again`; what was queued
/// on a link that breaks is lost.
Result<std::unique_ptr<ClientChannel>> connect_client(const std::string& socket_path,
                                                      const std::string& routing_id,
                                                      const ChannelOptions& options = {});

/// "NAME#INCARNATION#n" with n counting the calls in this process: readable in logs, never used
/// twice.
std::string make_routing_id(const std::string& name, std::uint64_t incarnation);

}  // namespace baton
