// Which memory processes the workers on GPUs have: one a GPU, found by its name in run_dir.
#pragma once

#include <string>
#include <vector>

#include "configs/config.h"
#include "ipc/status.h"

namespace baton {

/// The memory process of a GPU, by its ordinal or UUID: memory-gpu0, memory-GPU-1234.
std::string gpu_memory_name(const std::string& gpu);

/// Of each of a worker's ranks: the GPU's number or UUID, or auto. `gpu` names one, as many as
/// there are ranks, separated by commas, or auto for all of them.
Result<std::vector<std::string>> gpus_of(const WorkerConfig& worker);

/// The GPUs that have one, in order: those that workers name, and one for each worker that says
/// auto. Those use as many at most; which there are nobody knows without asking the driver, so a
/// memory process may find that it has no GPU.
std::vector<std::string> gpus_with_memory(const std::vector<WorkerConfig>& workers);

}  // namespace baton
