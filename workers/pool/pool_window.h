// The own pool and pools of others side by side in one range of addresses. A row's table has 32-bit
// block ids and the kernels one base address: with the window's base, ids behind the own pool's
// mean blocks of others. So a sequence whose blocks lie in several pools is computed by the same
// kernels, in the same order, as one whose blocks lie in one.
//
// The own pool appears here a second time: both mappings are of the same pages. Whoever computes
// nothing out of other pools has no window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// Used by the pull thread, which maps and unmaps, and by the step thread, which reads.
class PoolWindow {
 public:
  /// `own`: a shared mapping of whole blocks, which outlives this.
  PoolWindow(AllocationId allocation, std::span<std::byte> own, std::uint64_t block_bytes);
  ~PoolWindow();
  PoolWindow(const PoolWindow&) = delete;
  PoolWindow& operator=(const PoolWindow&) = delete;

  /// Gives a pool that is mapped elsewhere its place here, too. Once more: nothing happens.
  Status add(AllocationId allocation, std::span<const std::byte> pool);
  /// No step names it any more.
  void remove(AllocationId allocation);

  /// Ids of a row's table, as seen from base(). False: a pool is not here.
  bool resolve(const BatchRow& row, std::vector<BlockId>& ids) const;
  /// Where block 0 of the own pool lies; null before the first add().
  std::byte* base() const {
    const std::lock_guard lock(mutex_);
    return base_;
  }
  /// Every id is below.
  std::uint32_t ids() const {
    const std::lock_guard lock(mutex_);
    return ids_;
  }

 private:
  struct Place {
    std::uint32_t first = 0;  // id of its block 0
    std::uint32_t blocks = 0;
    std::size_t bytes = 0;
  };

  Status open();
  Status map(const std::byte* from, std::size_t bytes, std::uint32_t first);
  std::uint32_t find_place(std::uint32_t blocks) const;

  const AllocationId own_;
  const std::span<std::byte> own_pool_;
  const std::uint64_t block_bytes_;
  std::byte* base_ = nullptr;
  std::size_t reserved_ = 0;
  std::uint32_t ids_ = 0;
  std::uint32_t step_ = 1;  // first ids are multiples of it: blocks need not be whole pages
  mutable std::mutex mutex_;
  std::map<AllocationId, Place> places_;
};

}  // namespace baton
