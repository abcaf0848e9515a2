// Checksums of a GPU's memory: of blocks of a worker's own pool, for debugging
// (worker.check_pulls), and of weights that processes share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/types.h"
#include "workers/cuda/device.h"
#include "workers/pool/cuda_pool.h"

namespace baton {

class CudaSums {
 public:
  /// Queues the sums of these blocks, of either part. What was queued before has ended. Throws
  /// CudaError.
  void queue(const CudaPool& pool, std::span<const BlockId> blocks, cuda::Stream stream);
  /// Of the last queue(), once the stream has passed it.
  std::vector<std::uint64_t> take();

 private:
  std::size_t n_ = 0;
  cuda::PinnedMemory host_;    // sums, then ids
  cuda::DeviceMemory device_;  // likewise
};

/// Of memory of the current device; `bytes` a multiple of 16. Waits for it. Throws CudaError.
std::uint64_t sum_of_memory(const std::byte* memory, std::size_t bytes);

}  // namespace baton
