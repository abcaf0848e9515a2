// What the ranks of a worker on GPUs share beside the host's part of their group: an exchange
// buffer in each GPU's memory, which all of them map, and the step that rank 0 packs and all run.
// Pools are a rank's own, of its heads, with the same block ids everywhere (docs/adr/0025).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/status.h"
#include "workers/collective/rank_group.h"
#include "workers/cuda/attention/attention.h"
#include "workers/cuda/collective/rank_exchange.h"
#include "workers/cuda/device.h"
#include "workers/model/gpu_decoder.h"
#include "workers/pool/kv_pool.h"

namespace baton {

/// The exchange buffers of a group, mapped. All ranks make theirs at the same time.
class GpuExchange {
 public:
  /// `hidden`: the widest row that is summed. Throws CudaError, RankLost, or std::runtime_error
  /// where two ranks' GPUs do not reach each other or are of different kinds.
  GpuExchange(RankGroup& group, int rank, int hidden, const cuda::DeviceInfo& device);

  cuda::RankExchange& exchange() { return *exchange_; }
  /// Of the exchange buffer.
  std::uint64_t bytes() const { return own_.bytes(); }

 private:
  std::vector<std::string> uuids_;
  cuda::DeviceMemory own_;
  std::vector<cuda::DeviceMemory> others_;
  cuda::RegisteredMemory abort_word_;  // the group's, as kernels read it
  std::unique_ptr<cuda::RankExchange> exchange_;
};

/// What rank 0 leases its pool with, so that the others lease theirs likewise.
std::string encode_pool_offer(const PoolRequest& request);
Status decode_pool_offer(const PoolOffer& offer, PoolRequest& request);

/// A step as rank 0 has packed it for its device, for the others to run on theirs.
struct GpuRankStep {
  std::vector<CopyOp> copies;
  int padded = 0;  // rows of its graph; 0: it is queued kernel by kernel
  GpuBatch batch;  // no rows: copies alone. Its pointers lie in `base`
  const std::byte* base = nullptr;
  /// A row waits for another worker: all meet before each layer's attention, rank 0 when its wait
  /// has ended.
  bool awaits = false;
  /// What other devices do; pointers likewise. Each rank finds those that hold its counterparts.
  cuda::TravelWork travel;
  std::vector<cuda::AttentionRow> chunks;
  /// Other workers' pools that tables name: a rank's mappings lie elsewhere than rank 0's.
  struct PoolName {
    AllocationId allocation = 0;
    std::uint64_t number = 0;  // as tables have it, and batch.pool_offsets
  };
  std::vector<PoolName> pools;
  const std::byte* inputs = nullptr;  // to upload: in the bytes that were decoded
  std::size_t input_bytes = 0;
};
/// Replaces `bytes`.
void encode_gpu_step(const GpuRankStep& step, std::string& bytes);
/// `step` looks into `bytes`. The error: they are not those of a step.
Status decode_gpu_step(const std::string& bytes, GpuRankStep& step);
/// The batch with its pointers moved from `from` to `to`.
GpuBatch moved(const GpuBatch& batch, const std::byte* from, const std::byte* to);

}  // namespace baton
