#include "configs/gpu_memory.h"

#include <algorithm>

namespace baton {

std::string gpu_memory_name(const std::string& gpu) {
  const bool ordinal = gpu.find_first_not_of("0123456789") == std::string::npos;
  return (ordinal ? "memory-gpu" : "memory-") + gpu;
}

std::vector<std::string> gpus_with_memory(const std::vector<WorkerConfig>& workers) {
  std::vector<std::string> gpus;
  int automatic = 0;
  for (const WorkerConfig& worker : workers) {
    if (worker.device != "cuda" || worker.fake) continue;
    std::string gpu = worker.gpu == "auto" ? std::to_string(automatic++) : worker.gpu;
    if (std::find(gpus.begin(), gpus.end(), gpu) == gpus.end()) gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace baton
