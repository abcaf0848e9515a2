// A worker's weights on its GPU: mapped where the memory process of the GPU has them, else loaded,
// for all workers of the GPU if that process gives the memory, for this one alone if there is none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ipc/process.h"
#include "workers/cuda/device.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/config.h"
#include "workers/model/gpu_weights.h"

namespace baton {

struct GpuWeightsRequest {
  std::string worker;
  std::string memory_socket;               // empty: nothing is shared
  const ModelConfig* config = nullptr;     // outlives the call
  const Checkpoint* checkpoint = nullptr;  // likewise; null: random weights
  std::uint64_t fingerprint = 0;
  cuda::DeviceInfo device;  // the calling thread's
  GpuCut cut = {};          // which part of them this process has
};

struct BroughtWeights {
  GpuWeights weights;
  UniqueFd link;            // says that shared ones are in use; none: they are this process's own
  std::uint64_t copy = 0;   // as WorkerFacts::weight_copy
  bool mapped = false;      // somebody else has loaded them
  bool unmappable = false;  // memory of the memory process cannot be mapped here
};

/// `percent` rises to 100. Throws ModelError (there is no room, say) or CudaError.
BroughtWeights bring_gpu_weights(const GpuWeightsRequest& request, std::atomic<int>& percent);

}  // namespace baton
