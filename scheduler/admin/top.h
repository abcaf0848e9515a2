// `baton-ctl top`: what the console shows, in a terminal.
#pragma once

#include <string>

#include "ipc/types.h"

namespace baton {

/// On a terminal: until `q`, Ctrl-C or SIGTERM, drawn anew every `interval` and when the window's
/// size changes; a scheduler that leaves is waited for. Elsewhere: once. Returns the exit code.
int run_top(const std::string& admin_socket, TimeNs interval);

}  // namespace baton
