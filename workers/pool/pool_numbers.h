// Pools of other workers that a device's rows may read in place, by the numbers that tables call
// them by (pool_ids.h). Mappings of GPU memory lie wherever the driver has put them: kernels are
// told how far from the own pool each of them begins. On CPUs one range of addresses does the same
// (pool_window.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/pool/pool_ids.h"
#include "workers/pool/resolved_tables.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// A pool as the device in whose memory it lies sees it, if that is not the own one: this process
/// may have kernels there, too.
struct PoolHolder {
  int device = -1;  // none
  const std::byte* begin = nullptr;
};

/// Used by the pull thread, which maps and unmaps, and by the step thread, which reads.
class PoolNumbers {
 public:
  /// The own pool, which is number 0: a sequence may have come back to it.
  PoolNumbers(AllocationId own, const std::byte* begin, std::uint32_t blocks)
      : own_(own), places_{{own, {0, begin, blocks, {}}}} {}

  /// From now on rows may name its blocks. Once more: nothing happens.
  Status add(AllocationId allocation, const std::byte* begin, std::uint32_t blocks,
             PoolHolder holder = {});
  /// No step names it any more.
  void remove(AllocationId allocation);

  /// Ids of a row's table as kernels have them, behind those that `ids` has. False: a pool is not
  /// here, or has no such block.
  bool resolve(const BatchRow& row, std::vector<BlockId>& ids) const;
  /// The device that holds a pool, and from the own pool's first byte to where that one sees it.
  struct Held {
    int device = -1;  // none but the own one
    std::int64_t offset = 0;
  };
  /// What a pool is called here, and where it begins, from the own pool's first byte on.
  struct Found {
    std::uint32_t number = 0;
    std::int64_t offset = 0;
    Held held = {};
  };
  std::optional<Found> find(AllocationId allocation) const;
  /// By number: from the own pool's first byte to this one's. Numbers without a pool have 0.
  std::vector<std::int64_t> offsets() const;
  /// By number.
  std::vector<Held> holders() const;

 private:
  struct Place {
    std::uint32_t first = 0;  // id of its block 0
    const std::byte* begin = nullptr;
    std::uint32_t blocks = 0;
    PoolHolder holder = {};

    std::uint32_t number() const { return first >> kPoolBlockBits; }
  };
  std::optional<std::uint32_t> free_number() const;
  Held held(const Place& place) const;

  const AllocationId own_;
  mutable std::mutex mutex_;
  std::map<AllocationId, Place> places_;
};

/// The same rows with tables as kernels have them. Both outlive the step; buffers are reused.
class ResolvedRows {
 public:
  /// Throws as resolve_rows().
  const RunStep& resolve(const RunStep& step, const PoolNumbers& pools);

 private:
  RunStep step_;  // its rows alone
  std::vector<std::vector<BlockId>> tables_;
};

}  // namespace baton
