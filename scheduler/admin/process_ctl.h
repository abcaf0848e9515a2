// What baton-ctl knows of the processes of a run directory by their records (ipc/process_record.h),
// whether or not a scheduler runs: it shows them, and has them replaced by their supervisors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ipc/types.h"

namespace baton {

struct ProcessCommands {
  std::string run_dir;
  std::string admin_socket;       ///< asked whether a worker is ready
  bool rolling = false;           ///< restart: one after the other
  TimeNs within = 600 * kSecond;  ///< what each process has to be up again
};

/// Carries out "show processes [json]" and "restart NAME|all" and says what it does. Returns the
/// exit code; nothing: these words are no business of it.
std::optional<int> process_command(const std::vector<std::string>& words,
                                   const ProcessCommands& options);

}  // namespace baton
