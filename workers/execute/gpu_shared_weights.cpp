#include "workers/execute/gpu_shared_weights.h"

#include <spdlog/spdlog.h>

#include <functional>
#include <utility>

#include "workers/model/content_digest.h"
#include "workers/model/error.h"
#include "workers/pool/cuda_sums.h"
#include "workers/pool/weights_lease.h"

namespace baton {

namespace {

std::string mib(std::uint64_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; }

WeightsAsk ask_of(const GpuWeightsRequest& request, std::uint64_t bytes) {
  WeightsAsk ask;
  ask.worker = request.worker;
  ask.bytes = bytes;
  ask.key.model_fingerprint = request.fingerprint;
  ask.key.files = request.checkpoint == nullptr ? 0 : request.checkpoint->stamp();
  // The tables of angles are as long as the longest context.
  ask.key.format = (request.checkpoint == nullptr ? "gpu, random, " : "gpu, stored, ") +
                   std::to_string(request.config->max_context) + " positions";
  if (!request.cut.whole()) {
    ask.key.format += ", rank " + std::to_string(request.cut.rank) + " of " +
                      std::to_string(request.cut.ranks) +
                      (request.cut.by_outputs ? " by outputs" : "");
  }
  ask.key.layout = kGpuWeightLayoutVersion;
  return ask;
}

void load(const GpuWeightsRequest& request, std::atomic<int>& percent, GpuWeights& weights) {
  if (request.checkpoint == nullptr) {
    random_gpu_weights(*request.config, percent, weights, request.cut);
  } else {
    load_gpu_weights(*request.config, *request.checkpoint, request.device.ordinal, percent, weights,
                     request.cut);
    expect_unchanged(*request.checkpoint);  // before other workers are given what was loaded
  }
}

GpuWeights load_own(const GpuWeightsRequest& request, std::uint64_t bytes,
                    std::atomic<int>& percent) {
  const cuda::MemoryInfo memory = cuda::memory_info();
  if (bytes > memory.free) {
    throw ModelError("the weights take " + mib(bytes) + ", " + request.device.name + " has " +
                     mib(memory.free) + " of " + mib(memory.total) + " free");
  }
  cuda::DeviceMemory place(bytes);
  const cuda::OwnedStream stream;
  cuda::fill_bytes(place.data(), 0, place.bytes(), stream.get());  // what fills tiles up is nought
  stream.synchronize();
  GpuWeights weights =
      place_gpu_weights(*request.config, request.checkpoint, std::move(place), request.cut);
  load(request, percent, weights);
  return weights;
}

/// What a lease says of shared weights, carried out. False: somebody has written over them.
bool take_shared(const GpuWeightsRequest& request, WeightsLease& lease, std::uint64_t bytes,
                 std::atomic<int>& percent, BroughtWeights& brought) {
  cuda::DeviceMemory place;
  try {
    place = cuda::DeviceMemory::import(lease.device.handle, bytes);
  } catch (const cuda::CudaError& e) {
    spdlog::warn("memory of the memory process cannot be mapped: {}", e.what());
    brought.unmappable = true;
    return true;
  }
  // On a GPU everybody may write to what is sealed: the sum says that nobody has. 15 GiB take some
  // 10 ms.
  if (!lease.fill && sum_of_memory(place.data(), bytes) != lease.device.sum) return false;
  brought.mapped = !lease.fill;
  brought.weights =
      place_gpu_weights(*request.config, request.checkpoint, std::move(place), request.cut);
  if (lease.fill) {
    load(request, percent, brought.weights);
    if (!give_device_weights(lease, sum_of_memory(brought.weights.memory.data(), bytes))) {
      spdlog::warn("the memory process has not taken the weights: nobody else shares them");
    }
  }
  // Handles of different allocations differ while either exists.
  brought.copy = std::hash<std::string>()(lease.device.handle) | 1U;
  brought.link = std::move(lease.link);
  return true;
}

}  // namespace

BroughtWeights bring_gpu_weights(const GpuWeightsRequest& request, std::atomic<int>& percent) {
  const std::uint64_t bytes = gpu_weight_bytes(*request.config, request.checkpoint, request.cut);
  BroughtWeights brought;
  WeightsAsk ask = ask_of(request, bytes);
  LeaseWaits waits;
  waits.answer = packing_patience(bytes);
  constexpr int kTries = 2;  // the second one loads what the first one found damaged
  for (int i = 0; i < kTries; ++i) {
    WeightsLease lease = lease_weights(request.memory_socket, ask, waits);
    if (lease.device.handle.empty() || lease.device.bytes != bytes) {
      const bool other = lease.why.empty() && !lease.device.handle.empty();
      const std::string why = other ? "those that are there have another size" : lease.why;
      if (!why.empty()) spdlog::info("weights are not shared: {}", why);
      break;
    }
    if (take_shared(request, lease, bytes, percent, brought)) break;
    spdlog::error("the shared weights are damaged: they are loaded again");
    ask.damaged = lease.device.handle;
  }
  if (brought.weights.memory.data() == nullptr) brought.weights = load_own(request, bytes, percent);
  percent = 100;
  return brought;
}

}  // namespace baton
