// How large a worker's pool on its GPU is, and where it comes from: the memory process of the GPU,
// or this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/kv_layout.h"
#include "ipc/process.h"
#include "ipc/status.h"
#include "workers/pool/cuda_pool.h"
#include "workers/pool/kv_pool.h"

namespace baton {

struct GpuPool {
  std::unique_ptr<CudaPool> pool;
  AllocationId allocation = 0;
  UniqueFd lease;     // as LeasedPool::link
  bool kept = false;  // it holds what an earlier process has written
};

struct GpuPoolRequest {
  KvGeometry shape;              // blocks == 0
  double memory_fraction = 0.9;  // of the GPU's memory, for everything of this worker
  /// Of shared ones all: what sharing saves stays free, for the copy more that there is while a
  /// memory process is replaced.
  std::uint64_t weight_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t other_bytes = 0;        // that it has taken or will take beside these
  std::string weights;                  // their type in memory
  std::string memory_socket;            // empty: the pool is this process's own
  std::vector<std::string> neighbours;  // others on this host's GPUs whose pools have host parts
  /// Of several ranks: how many blocks all of them have, by what this one has room for; and the
  /// lease, under which name of the weights' type all of them find theirs again.
  std::function<std::uint32_t(std::uint32_t)> agree_on_blocks = {};
  std::function<Result<GpuPool>(const std::function<Result<GpuPool>(std::string)>&)>
      lease_in_order = {};
};

/// The error says what there is no room for; ErrorCode::unavailable may pass. Throws CudaError.
Result<GpuPool> make_gpu_pool(const PoolRequest& request, const GpuPoolRequest& gpu);

}  // namespace baton
