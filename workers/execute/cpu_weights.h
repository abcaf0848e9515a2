// A model on CPUs with its weights: mapped if another worker has packed them, else packed here, and
// shared where a memory process keeps them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "workers/model/llama.h"
#include "workers/pool/weights_lease.h"

namespace baton {

struct CpuModelAsk {
  std::string process;        // who asks, for people
  std::string memory_socket;  // where a memory process may listen
  int threads = 1;
  WeightChoice weights = WeightChoice::stored;
  ModelCut cut = {};  // ranks of the same number share their part with those of other workers
  Collective* group = nullptr;
  std::uint32_t kv_groups_for = 0;  // as in LoadOptions
};

struct CpuModel {
  std::unique_ptr<LlamaModel> model;
  UniqueFd weights_link;          // says that this process uses shared weights
  std::uint64_t weight_copy = 0;  // as in WorkerFacts
};

/// A worker that packs them while others wait reads them but once; whoever waits too long, or finds
/// no memory process, packs its own.
WeightsLease ask_for_weights(const CpuModelAsk& ask, const ModelFiles& files,
                             const WeightPlan& plan);

/// Throws ModelError, and ModelChanged.
CpuModel load_cpu_model(const CpuModelAsk& ask, const ModelFiles& files, WeightsLease lease,
                        std::atomic<int>& percent);

}  // namespace baton
