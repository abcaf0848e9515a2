// Which names in /dev/shm belong to a run directory, and whether a process of it lives. Containers
// may share /dev/shm and use the same path, each with pids of its own: neither the path nor a pid
// says whose segment it is. A space is named after what the kernel knows (boot, device and inode of
// the directory, PID namespace), and its lock file, which the kernel frees at a death, is held by
// every process that writes to a segment of it.
#pragma once

#include <functional>
#include <string>

#include "ipc/status.h"

namespace baton {

/// "baton-<uid>-<hash>". The same for the rest of this process's life, even if the directory is
/// made anew.
std::string shm_space(const std::string& run_dir);

/// Holds the lock of the space that a segment's name begins with, shared, until this process ends.
/// A name that begins with no space needs none.
Status hold_shm_space(const std::string& segment);

/// Calls `sweep` for every space of this user whose lock nobody holds, and holds it exclusively
/// meanwhile. The lock file goes if `sweep` says that nothing is left in the space.
void sweep_free_spaces(const std::function<bool(const std::string& space)>& sweep);

}  // namespace baton
