// Which Executor a configuration asks for.
#pragma once

#include <memory>

#include "configs/config.h"
#include "ipc/status.h"
#include "workers/execute/executor.h"

namespace baton {

/// Nothing is loaded yet. The error names the key that is wrong.
Result<std::unique_ptr<Executor>> make_executor(const Config& config);

}  // namespace baton
