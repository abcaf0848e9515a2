// What a rank other than 0 does on GPUs: a CudaExecutor that follows rank 0's, and a thread that
// reads other workers' pools as rank 0 says.
#pragma once

#include <memory>

#include "workers/execute/cuda_executor.h"
#include "workers/execute/rank_process.h"

namespace baton {

std::unique_ptr<RankWork> make_gpu_rank(const CudaExecutor::Options& options);

}  // namespace baton
