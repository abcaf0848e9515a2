// What a front end of the same name left: the sockets of its clients and its journals, which its
// twin (twin.h) holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// All descriptors are closed when a program is executed (O_CLOEXEC). While the old twin lives it
/// holds them too: what is closed here is really closed once it has gone. Movable.
class Inheritance {
 public:
  /// What a front end of this name left; std::nullopt: nobody left anything (no socket, or nobody
  /// listens). Waits up to `patience` for a predecessor that still ends (its twin sees when it
  /// has), and continues a twin that somebody stopped. After that the old twin waits for
  /// release(), 30 s; whoever dies before leaves all to the next one.
  /// Errors: the predecessor lives on; no room for so many descriptors (RLIMIT_NOFILE); what comes
  /// is no legacy.
  static Result<std::optional<Inheritance>> fetch(const std::string& run_dir,
                                                  const std::string& name, TimeNs patience);

  std::vector<UniqueFd> keepsakes;    // by index; -1 where there was none
  std::vector<UniqueFd> listeners;    // TCP sockets that listen
  std::vector<UniqueFd> connections;  // the other TCP sockets, those that are gone too

  /// The old twin may go: call it after this process's own Twin has committed. It goes by itself
  /// within a second of that; this saves the second.
  void release();

 private:
  friend class LegacyReader;
  UniqueFd twin_;  // the connection to it
};

}  // namespace baton
