// What a rank other than 0 does on CPUs: it maps the one pool that all ranks write their heads to.
#pragma once

#include <memory>

#include "workers/execute/cpu_executor.h"
#include "workers/execute/rank_process.h"

namespace baton {

std::unique_ptr<RankWork> make_cpu_rank(const CpuExecutor::Options& options, int rank);

}  // namespace baton
