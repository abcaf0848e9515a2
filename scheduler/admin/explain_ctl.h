// Where the time of a request went that has ended: read from the files that front ends keep in the
// run directory, so that no process need live.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ipc/explained.h"

namespace baton {

/// Carries out "explain ID [json]" and prints the answer. Returns the exit code; nothing: these
/// words ask for something else.
std::optional<int> explain_command(const std::vector<std::string>& words,
                                   const std::string& run_dir, bool json);

/// What it prints. `others`: what clients call requests that it waited for or beside.
std::string explain_text(const ExplainedRequest& request, const RequestNames& others);

}  // namespace baton
