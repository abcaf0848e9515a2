#include "configs/gpu_memory.h"

#include <algorithm>
#include <sstream>

namespace baton {

std::string gpu_memory_name(const std::string& gpu) {
  const bool ordinal = gpu.find_first_not_of("0123456789") == std::string::npos;
  return (ordinal ? "memory-gpu" : "memory-") + gpu;
}

Result<std::vector<std::string>> gpus_of(const WorkerConfig& worker) {
  std::vector<std::string> gpus;
  std::istringstream text(worker.gpu);
  for (std::string gpu; std::getline(text, gpu, ',');) gpus.push_back(gpu);
  if (worker.gpu == "auto") gpus.resize(worker.ranks, "auto");
  const bool named = std::none_of(gpus.begin(), gpus.end(), [&](const std::string& gpu) {
    return gpu.empty() || (gpu == "auto" && worker.gpu != "auto");
  });
  if (named && gpus.size() == worker.ranks) return gpus;
  return invalid("gpu '" + worker.gpu + "' must be auto or name " + std::to_string(worker.ranks) +
                 (worker.ranks == 1 ? " GPU" : " GPUs, one a rank, separated by commas"));
}

std::vector<std::string> gpus_with_memory(const std::vector<WorkerConfig>& workers) {
  std::vector<std::string> gpus;
  int automatic = 0;
  for (const WorkerConfig& worker : workers) {
    if (worker.device != "cuda" || worker.fake) continue;
    const auto named = gpus_of(worker);
    if (!named.ok()) continue;  // its configuration is refused
    for (std::string gpu : named.value()) {
      if (gpu == "auto") gpu = std::to_string(automatic++);
      if (std::find(gpus.begin(), gpus.end(), gpu) == gpus.end()) gpus.push_back(std::move(gpu));
    }
  }
  return gpus;
}

}  // namespace baton
