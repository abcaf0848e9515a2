// Where kept pools lie: on CPUs in named segments, on GPUs in memory that this process allocates.
// The host part is a segment either way, which its worker page-locks. No rules here: leases.h.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "memory/device_allocator.h"
#include "memory/leases.h"
#include "memory/shared_weights.h"

namespace baton {

class PoolStore {
 public:
  virtual ~PoolStore() = default;
  /// A fresh pool, both parts; all bytes are zero. What else there is of its worker goes. An error
  /// leaves nothing.
  virtual Status make(const KeptPool& pool) = 0;
  /// How others map it: fields of Leased. `host_part` only where the pool has one.
  virtual std::string handle(const KeptPool& pool, bool host_part) const = 0;
  /// A worker that has waited too long for its lease made a pool of its own, and removed this one's
  /// segments.
  virtual bool exists(const KeptPool& pool) const = 0;
  /// Bytes of memory that it takes.
  virtual std::uint64_t bytes(const KeptPool& pool) const = 0;
  /// Its content is of no use any more. Who has it mapped keeps it.
  virtual void drop(const KeptPool& pool) = 0;
  /// Somebody is about to map the pool of that handle, and has it mapped until its link ends: see
  /// PoolMapped. The allocation, or 0: there is none.
  virtual AllocationId map(const std::string& /*handle*/, LinkNumber /*link*/) { return 0; }
  virtual void unmap(LinkNumber /*link*/) {}
};

/// The memory is taken by the worker: here it only gets its name.
class SegmentStore final : public PoolStore {
 public:
  explicit SegmentStore(std::string run_dir);
  Status make(const KeptPool& pool) override;
  std::string handle(const KeptPool& pool, bool host_part) const override;
  bool exists(const KeptPool& pool) const override;
  std::uint64_t bytes(const KeptPool& pool) const override;
  void drop(const KeptPool& pool) override;

 private:
  const std::string run_dir_;
  const std::int32_t pid_;
  const std::uint64_t pid_start_;
};

/// On a device, which outlives this. A freed allocation's place is soon another one's, under the
/// eyes of whoever has it mapped: so a pool that is given up is not freed before its importers have
/// let go.
class DeviceStore final : public PoolStore {
 public:
  /// `process`: this one's name.
  DeviceStore(std::string run_dir, std::string process, DeviceAllocator& device)
      : process_(std::move(process)), device_(device), segments_(std::move(run_dir)) {}
  Status make(const KeptPool& pool) override;
  std::string handle(const KeptPool& pool, bool host_part) const override;
  bool exists(const KeptPool& pool) const override;
  std::uint64_t bytes(const KeptPool& pool) const override;
  void drop(const KeptPool& pool) override;
  AllocationId map(const std::string& handle, LinkNumber link) override;
  void unmap(LinkNumber link) override;

 private:
  struct Made {
    AllocationId allocation = 0;
    DeviceBlock block;
    std::set<LinkNumber> importers;
  };
  void give_up(const std::string& worker);
  std::string handle_of(const Made& made) const { return made.block.handle + "@" + process_; }

  const std::string process_;
  DeviceAllocator& device_;
  SegmentStore segments_;             // of host parts alone
  std::map<std::string, Made> made_;  // by worker
  std::vector<Made> leaving_;         // given up, and mapped by importers
};

}  // namespace baton
