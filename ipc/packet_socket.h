// Unix sockets that carry whole packets between two processes of a host, for the few messages for
// which it matters who the peer is and whether it lives: the kernel tells the peer's pid, a socket
// that nobody listens on refuses at once, and one whose peer dies hangs up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// Largest packet that is sent or received.
constexpr std::size_t kMaxPacketBytes = 64U << 10U;

/// Listens at `path` (0600), in the directory that `held` locks; what an earlier holder has left
/// there goes. Does not block.
Result<UniqueFd> listen_packets(const LockFile& held, const std::string& path);

struct PacketPeer {
  UniqueFd fd;
  std::int32_t pid = 0;  // as the kernel says; 0: of another PID namespace
};
/// Nothing: nobody waits.
std::optional<PacketPeer> accept_packets(int listening);

/// An error at once if nobody listens.
Result<UniqueFd> connect_packets(const std::string& path);

/// False: the peer is gone, or takes nothing. `carried`: a descriptor that goes along; the peer
/// gets one of its own.
bool send_packet(int fd, std::string_view bytes, int carried = -1);

enum class Received : std::uint8_t { packet, nothing, closed };
/// Waits for at most `patience`; 0: only looks. `carried`, if given, gets the descriptor that came
/// along, or none; descriptors that nobody expects are closed.
Received receive_packet(int fd, TimeNs patience, std::string& bytes, UniqueFd* carried = nullptr);

}  // namespace baton
