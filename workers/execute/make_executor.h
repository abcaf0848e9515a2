// Which Executor a configuration asks for.
#pragma once

#include <memory>

#include "configs/config.h"
#include "ipc/process.h"
#include "ipc/status.h"
#include "workers/execute/executor.h"

namespace baton {

/// Nothing is loaded yet. The error names the key that is wrong.
Result<std::unique_ptr<Executor>> make_executor(const Config& config);

/// The life of a rank other than 0 (config.self.rank). Returns its exit status; an error is one of
/// the configuration.
Result<int> run_rank(const Config& config, SignalFd& signals);

}  // namespace baton
