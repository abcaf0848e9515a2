// What the kernel knows about a TCP connection whatever became of the process that served it: how
// much was written to it and how much was read, to the byte.
#pragma once

#include <cstdint>

#include "ipc/status.h"

namespace baton {

/// How far an accepted TCP connection has got, as the kernel counts.
struct SocketProgress {
  bool gone = false;           // state CLOSE: nobody is there any more; all else is then unknown
  bool fin_sent = false;       // we shut the sending direction
  bool fin_received = false;   // the client did
  std::uint64_t written = 0;   // bytes that were ever handed to the kernel for the client
  std::uint64_t consumed = 0;  // bytes that were ever read from it
};

/// Takes 3 to 5 us. The caller sees to it that nobody writes to `fd` or reads from it meanwhile;
/// the client may do both. True of accepted sockets alone: on one that connected, the SYN counts.
/// Errors: no TCP connection (a listener included), a kernel that does not count (before 4.1).
Result<SocketProgress> socket_progress(int fd);

/// The kernel's number of a socket (SO_COOKIE): the same in every process that holds it, and never
/// used again while the machine runs. 0: `fd` has none.
std::uint64_t socket_cookie(int fd);

}  // namespace baton
