// The log of a process. spdlog's set-up stays inside one file.
#pragma once

#include <string>

#include "configs/config.h"

namespace baton {

/// Sends everything that spdlog's default logger gets to standard error, as log_level and log_format say, a line at
/// a time. `name`: the process, as the lines call it.
void start_process_log(const Config& config, const std::string& name);

}  // namespace baton
