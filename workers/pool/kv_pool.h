// A part of a KV pool in shared memory: on CPUs the twin of a GPU's pool, and everywhere the host
// part. One region per worker life and part, laid out as ipc/kv_layout.h says. Other workers map it
// read-only; only its own worker writes. It never chooses a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ipc/kv_layout.h"
#include "ipc/messages.h"
#include "ipc/shm_region.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// What a worker asks for.
struct PoolRequest {
  std::string run_dir;
  std::string worker;
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;
  AllocationId allocation = 0;
  Incarnation incarnation = 0;
  std::string memory_socket;  // where a memory process may listen; empty: the pool is the worker's
  std::uint32_t pool_blocks = 0;       // 0: as many as fit pool_mib
  std::uint64_t pool_mib = 0;          // 0 as well: the backend's default
  std::uint32_t host_pool_blocks = 0;  // of the host part; 0: as many as fit host_pool_mib
  std::uint64_t host_pool_mib = 0;     // 0 as well: no host part
  bool tells_layers = false;  // steps shall tell others how far they are (layer_progress.h)
};

enum class PoolPart { device, host };

/// Fills in block_bytes and blocks of `shape`. The error shows the arithmetic.
Result<KvGeometry> size_pool(KvGeometry shape, std::uint32_t pool_blocks, std::uint64_t pool_mib);

/// The host part that `request` wants beside `pool`; blocks == 0: none. The error shows the
/// arithmetic.
Result<KvGeometry> size_host_part(const KvGeometry& pool, const PoolRequest& request);

/// An id that no other worker and no other life of this one has.
AllocationId make_allocation_id(const std::string& worker, Incarnation incarnation);

/// Movable; the destructor unmaps it and unlinks the name (importers keep what they have mapped).
class KvPool {
 public:
  /// Unlinks the names that earlier lives of this worker left, then creates the region: every page
  /// is there when this returns, all zero. `geometry` must satisfy kv_check().
  static Result<KvPool> create(const PoolRequest& request, const KvGeometry& geometry,
                               PoolPart part = PoolPart::device);

  /// The part of a pool that a memory process keeps. `region` outlives this.
  static Result<KvPool> open(const std::string& region, AllocationId allocation,
                             const KvGeometry& geometry, PoolPart part = PoolPart::device,
                             ShmOptions options = {.prefault = true});

  KvPool() = default;

  const KvGeometry& geometry() const { return geometry_; }
  AllocationId allocation() const { return allocation_; }
  const std::string& handle() const { return region_.name(); }
  std::byte* data() { return region_.writable_data(); }
  /// `block` < geometry().blocks.
  std::byte* block(BlockId block) { return data() + geometry_.block_bytes * block; }

 private:
  static Result<KvPool> mapped(Result<ShmRegion> region, AllocationId allocation,
                               const KvGeometry& geometry, PoolPart part);

  ShmRegion region_;
  KvGeometry geometry_;
  AllocationId allocation_ = 0;
};

}  // namespace baton
