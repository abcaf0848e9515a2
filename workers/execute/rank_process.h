// The process of a rank other than 0: it loads its part of the model, maps the worker's pool, and
// runs the steps that rank 0 gives it. It knows no scheduler, no sequence and no token that was
// drawn.
#pragma once

#include "configs/config.h"
#include "ipc/process.h"
#include "workers/execute/cpu_executor.h"

namespace baton {

/// `options`: those that rank 0 has. Returns the exit status.
int run_rank_process(const Config& config, const CpuExecutor::Options& options, SignalFd& signals);

}  // namespace baton
