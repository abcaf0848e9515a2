// Attention of rows whose keys lie on several GPUs: each attends to those in its own memory.
// Between two events of a layer the others read the queries out of this device's memory and write
// the pieces' partial results back into its workspace; then the rows are merged here. The other
// process, whose pool it is, takes no part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/other_device.h"

namespace baton::cuda {

/// The pieces of a step that lie in one pool. Packed with addresses of the own device's upload,
/// which become those of OtherDevice::inputs() where there is a `device`.
struct TravelPart {
  /// Null: this process has no kernels there. The own device reads the keys over the link.
  const OtherDevice* device = nullptr;
  std::uint32_t pool = 0;  // its number (workers/pool/pool_ids.h)
  DecodeWork work;
  const std::int32_t* block_table = nullptr;
  const std::int64_t* pool_offsets = nullptr;  // by pool, from the own pool on, as `device` sees it
};

/// A step's. The own device's pieces are among its DecodeWork.
struct TravelWork {
  std::vector<TravelPart> parts;
  const DecodeItem* merges = nullptr;  // on the own device
  int rows = 0;                        // of `merges`
  const OwnedEvent* asked = nullptr;   // of the own device, used again and again
  void* workspace = nullptr;  // DecodeAttention::workspace_bytes(work.more_slots), for all rows
};

/// One layer's attention, arguments as those of DecodeAttention::run().
struct DecodeCall {
  const Bf16* qkv = nullptr;
  Bf16* out = nullptr;
  KvLayerView kv;
  const std::int32_t* block_table = nullptr;
  DecodeWork work;
  float scale = 0;
  AttentionRule rule = {};
};

/// The queries and keys of a layer are there, as far as `stream` has got: the other devices may
/// begin. Comes before attend_over_devices(), and before what else the layer computes meanwhile.
void let_devices_begin(const TravelWork& travel, Stream stream);
void attend_over_devices(const DecodeAttention& attention, const DecodeCall& call,
                         const TravelWork& travel, Stream stream);

}  // namespace baton::cuda
