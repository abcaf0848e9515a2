// Whether a model fits a machine's memory, by the number of ranks, before anything of it is loaded:
// `./baton doctor --model` prints it. From the headers of a checkpoint; free of libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workers/model/config.h"
#include "workers/model/safetensors.h"
#include "workers/model/weight_plan.h"

namespace baton {

/// Bytes of a checkpoint by how ranks share them (workers/model/cut.h).
struct RankWeights {
  std::uint64_t repeated =
      0;                  // whole on each rank: norms, biases, routers, ways into latent numbers
  std::uint64_t cut = 0;  // a part on each
  std::uint64_t kv = 0;   // keys' and values' rows: a part on each, at least one head's
  std::uint64_t experts = 0;  // each expert on one rank; on GPUs they are cut
  std::uint64_t kv_heads = 1;
  std::uint64_t expert_count = 1;

  /// Of the rank that has most, and of all together.
  std::uint64_t of_largest(int ranks) const;
  std::uint64_t of_all(int ranks) const;
};

/// As the tensors are stored, or as GPUs have them: those that are not quantised in bf16.
enum class TensorBytes : std::uint8_t { stored, on_gpu };
/// `ranks`: of GPUs, how many share the model.
RankWeights rank_weights(const ModelConfig& config, const Checkpoint& checkpoint, TensorBytes how,
                         int ranks = 1);

/// Free memory, in bytes.
struct MachineMemory {
  std::uint64_t host = 0;
  std::uint64_t shared = 0;  // of /dev/shm, where pools of CPUs lie; 0: not known
  std::vector<std::uint64_t> gpus;
  unsigned cores = 1;
  double fraction = 0.9;  // worker.memory_fraction
};

struct FitQuestion {
  const ModelConfig& config;
  const Checkpoint& checkpoint;
  std::string name;               // of the model, for people
  std::uint32_t max_context = 0;  // 0: what the model allows
};

struct FitAnswer {
  bool somewhere = false;          // it fits with one of these numbers of ranks
  std::vector<std::string> lines;  // each begins with "ok" or "note", as doctor's do
};

/// For one worker that is alone: its weights, and a pool with room for one sequence of the longest
/// context, with every number of ranks that the model can have and the machine has devices for.
FitAnswer fit_model(const FitQuestion& question, const MachineMemory& machine);

}  // namespace baton
