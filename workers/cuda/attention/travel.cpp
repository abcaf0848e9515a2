#include "workers/cuda/attention/travel.h"

namespace baton::cuda {

void let_devices_begin(const TravelWork& travel, Stream stream) { travel.asked->record(stream); }

void attend_over_devices(const DecodeAttention& attention, const DecodeCall& call,
                         const TravelWork& travel, Stream stream) {
  // The own device first: what a kernel is told once a process (keep_l1()) it is told there.
  attention.run(call.qkv, call.out, call.kv, call.block_table, call.work, call.scale,
                travel.workspace, stream, nullptr, call.rule);
  for (const TravelPart& part : travel.parts) {
    KvLayerView kv = call.kv;
    kv.pool_offsets = part.pool_offsets;
    const auto attend = [&](Stream there) {
      attention.run(call.qkv, call.out, kv, part.block_table, part.work, call.scale,
                    travel.workspace, there, nullptr, call.rule);
    };
    if (part.device == nullptr) {
      attend(stream);
    } else {
      part.device->run(*travel.asked, attend);
    }
  }
  for (const TravelPart& part : travel.parts) {
    if (part.device != nullptr) part.device->wait_for(stream);
  }
  attention.merge(travel.merges, travel.rows, call.out, call.work.more_slots, travel.workspace,
                  stream, call.rule);
}

}  // namespace baton::cuda
