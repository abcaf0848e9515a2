// Which memory processes the workers on GPUs have: one a GPU, found by its name in run_dir.
#pragma once

#include <string>
#include <vector>

#include "configs/config.h"

namespace baton {

/// The memory process of a GPU, by its ordinal or UUID: memory-gpu0, memory-GPU-1234.
std::string gpu_memory_name(const std::string& gpu);

/// The GPUs that have one, in order: those that workers name, and one for each worker that says
/// auto. Those use as many at most; which there are nobody knows without asking the driver, so a
/// memory process may find that it has no GPU.
std::vector<std::string> gpus_with_memory(const std::vector<WorkerConfig>& workers);

}  // namespace baton
