// The client end of the scheduler's admin socket: baton-ctl, a front end whose console is watched,
// and a supervisor with a live line.
#pragma once

#include <optional>
#include <string>

#include "ipc/process.h"

namespace baton {

/// Nothing if nobody listens there; errno says why. `flags`: more of socket(2)'s, such as
/// SOCK_NONBLOCK.
UniqueFd connect_admin(const std::string& path, int flags = 0);

/// Sends one line and returns the answer, without the empty line that ends it; nothing if the
/// scheduler left before it had answered. `patience` of 0: as long as it takes.
std::optional<std::string> ask_admin(int fd, const std::string& line, TimeNs patience = 0);

}  // namespace baton
