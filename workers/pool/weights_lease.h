// A worker's end of sharing weights: see memory/shared_weights.h for the rules, docs/PROTOCOL.md
// for the messages. Used by the thread that loads the model; every wait has an end, behind which
// the worker packs weights of its own.
#pragma once

#include <memory>
#include <string>

#include "ipc/messages.h"
#include "ipc/process.h"
#include "ipc/sealed_memory.h"
#include "workers/pool/lease_client.h"

namespace baton {

/// How long a worker waits for another one that packs weights of so many bytes: some seconds, and
/// what a slow disk takes.
constexpr TimeNs packing_patience(std::uint64_t bytes) {
  constexpr std::uint64_t kBytesASecond = 100U << 20U;
  return 10 * kSecond + static_cast<TimeNs>(bytes / kBytesASecond) * kSecond;
}

/// Weights in memory of a GPU that its memory process has allocated.
struct DeviceCopy {
  std::string handle;  // empty: on CPUs
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;  // of what was sealed
};

/// What the memory process says to a worker that needs weights.
struct WeightsLease {
  std::shared_ptr<const SealedMemory> packed;  // null: pack them
  DeviceCopy device;  // on a GPU: they are there, or are to be packed there
  bool fill = false;  // ... and others wait for that: give_weights()
  std::string why;    // neither: why nothing is shared
  UniqueFd link;      // says that they are in use: it stays open as long as they are
};

WeightsLease lease_weights(const std::string& socket, const WeightsAsk& ask,
                           const LeaseWaits& waits);

/// Hands over what was packed. False: the memory process has not taken it, and nobody shares it.
bool give_weights(const WeightsLease& lease, const SealedMemory& packed);
/// The same of what was packed in lease.device, with its sum.
bool give_device_weights(const WeightsLease& lease, std::uint64_t sum);

}  // namespace baton
