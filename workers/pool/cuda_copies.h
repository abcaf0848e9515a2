// Copies between blocks of a worker's own pool on its GPU, in either direction between its parts.
#pragma once

#include <cstddef>
#include <vector>

#include "ipc/messages.h"
#include "workers/cuda/device.h"
#include "workers/pool/copy_groups.h"
#include "workers/pool/cuda_pool.h"

namespace baton {

class CudaCopies {
 public:
  /// `lanes`: steps that may be on the device at a time, all of them on one stream. Throws
  /// CudaError.
  CudaCopies(const CudaPool& pool, int multiprocessors, int lanes);
  /// Queues them all, as if one after another. What `lane` was used for before has ended.
  void queue(const std::vector<CopyOp>& copies, int lane, cuda::Stream stream);
  /// Hello::host_block_us; 0 without a host part. To be called before anything is in the pool.
  float measure_host_block_us(cuda::Stream stream);

 private:
  const CudaPool& pool_;
  const int ctas_;
  std::vector<cuda::PinnedMemory> lists_;  // by lane; they grow with the longest list seen
  cuda::DeviceMemory device_list_;         // ordered by the stream
  CopyGroups groups_;
};

}  // namespace baton
