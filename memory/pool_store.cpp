#include "memory/pool_store.h"

#include <unistd.h>

#include <utility>

#include "ipc/process.h"
#include "ipc/shm_region.h"

namespace baton {

namespace {

/// The pool as its host part alone.
KeptPool host_part_of(const KeptPool& pool) {
  KeptPool part = pool;
  part.blocks = 0;
  return part;
}

}  // namespace

SegmentStore::SegmentStore(std::string run_dir)
    : run_dir_(std::move(run_dir)), pid_(::getpid()), pid_start_(pid_start_time(pid_)) {}

Status SegmentStore::make(const KeptPool& pool) {
  unlink_predecessors(run_dir_, pool.worker, pool.allocation);
  for (const bool host_part : {false, true}) {
    const std::uint64_t blocks = host_part ? pool.host_blocks : pool.blocks;
    if (blocks == 0) continue;
    if (Status made = name_region(handle(pool, host_part), blocks * pool.key.block_bytes);
        !made.ok()) {
      drop(pool);
      return made;
    }
  }
  return {};
}

std::string SegmentStore::handle(const KeptPool& pool, bool host_part) const {
  return region_name(run_dir_, RegionName{pool.worker, pid_, pid_start_, pool.allocation, host_part,
                                          /*leased=*/true});
}

bool SegmentStore::exists(const KeptPool& pool) const {
  return (pool.blocks == 0 || region_bytes(handle(pool, false))) &&
         (pool.host_blocks == 0 || region_bytes(handle(pool, true)));
}

std::uint64_t SegmentStore::bytes(const KeptPool& pool) const {
  std::uint64_t bytes = 0;
  for (const bool host_part : {false, true})
    bytes += region_bytes(handle(pool, host_part)).value_or(0);
  return bytes;
}

void SegmentStore::drop(const KeptPool& pool) {
  for (const bool host_part : {false, true}) unlink_region(handle(pool, host_part));
}

Status DeviceStore::make(const KeptPool& pool) {
  give_up(pool.worker);  // first: both would have no room
  if (Status named = segments_.make(host_part_of(pool)); !named.ok()) return named;
  auto block = device_.allocate(std::uint64_t{pool.blocks} * pool.key.block_bytes);
  if (!block.ok()) {
    segments_.drop(pool);
    return block.status();
  }
  made_[pool.worker] = {pool.allocation, std::move(block).value(), {}};
  return {};
}

std::string DeviceStore::handle(const KeptPool& pool, bool host_part) const {
  if (host_part) return segments_.handle(pool, true);
  const auto known = made_.find(pool.worker);
  return known == made_.end() ? "" : handle_of(known->second);
}

bool DeviceStore::exists(const KeptPool& pool) const {
  const auto known = made_.find(pool.worker);
  return known != made_.end() && known->second.allocation == pool.allocation &&
         segments_.exists(host_part_of(pool));
}

std::uint64_t DeviceStore::bytes(const KeptPool& pool) const {
  const auto known = made_.find(pool.worker);
  return segments_.bytes(pool) + (known == made_.end() ? 0 : known->second.block.bytes);
}

void DeviceStore::drop(const KeptPool& pool) {
  give_up(pool.worker);
  segments_.drop(pool);
}

void DeviceStore::give_up(const std::string& worker) {
  const auto known = made_.find(worker);
  if (known == made_.end()) return;
  if (known->second.importers.empty()) {
    device_.free(known->second.block);
  } else {
    leaving_.push_back(std::move(known->second));
  }
  made_.erase(known);
}

AllocationId DeviceStore::map(const std::string& handle, LinkNumber link) {
  for (auto& [worker, made] : made_) {
    if (handle_of(made) != handle) continue;
    made.importers.insert(link);
    return made.allocation;
  }
  return 0;
}

void DeviceStore::unmap(LinkNumber link) {
  for (auto& [worker, made] : made_) made.importers.erase(link);
  std::erase_if(leaving_, [&](Made& made) {
    made.importers.erase(link);
    if (!made.importers.empty()) return false;
    device_.free(made.block);
    return true;
  });
}

}  // namespace baton
