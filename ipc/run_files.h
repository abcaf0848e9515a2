// Small files of a run directory, read and written so that nothing outside of the directory
// changes: no link is followed, a file is replaced in one step, and a file of another user is not
// read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/status.h"

namespace baton {

/// What ensure_private_directory() asks of a directory, without creating or changing it. A missing
/// directory is no error: nothing has run there.
Status check_own_directory(const std::string& path);

/// Writes `path`.new and renames it. What `path` was before, a link too, is replaced, never written
/// through. Mode 0600.
Status replace_file(const std::string& path, std::string_view text);

/// The first 4,096 bytes of a regular file that belongs to the owner of its directory; empty for
/// any other file, for a link, and on any error.
std::string read_run_file(const std::string& path);

/// Effective user of a process; nothing if it does not run.
std::optional<std::uint32_t> process_user(std::int32_t pid);
std::optional<std::uint32_t> directory_owner(const std::string& path);

/// Sends `signal` to the process that began at `start` (pid_start_time) and runs as `user`. False
/// if there is no such process: a record in a run directory reaches only processes of its owner.
bool signal_process(std::int32_t pid, std::uint64_t start, std::uint32_t user, int signal);

/// The kernel's name of this boot; "unknown" if it gives none.
const std::string& boot_id();

}  // namespace baton
