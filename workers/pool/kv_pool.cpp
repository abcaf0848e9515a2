#include "workers/pool/kv_pool.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace baton {

namespace {

std::string block_arithmetic(const KvGeometry& g) {
  const auto text = [](std::uint64_t n) { return std::to_string(n); };
  return text(g.layers) + " layers x K and V x " + text(g.kv_heads) + " heads x " +
         text(g.tokens_per_block) + " tokens x " + text(g.head_dim) + " x " +
         text(kv_element_bytes(g.dtype)) + " bytes = " + text(g.block_bytes) + " bytes a block";
}

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

constexpr ShmOptions kPrefault{.prefault = true};

const char* keys_of(PoolPart part) {
  return part == PoolPart::device ? "pool_mib or pool_blocks" : "host_pool_mib or host_pool_blocks";
}

const char* name_of(PoolPart part) {
  return part == PoolPart::device ? "KV pool" : "KV pool's host part";
}

/// What can never fit is told apart from what may fit once others have let go.
Status check_shared_memory(const KvGeometry& g, PoolPart part) {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0) return {};
  const std::uint64_t total = std::uint64_t{info.f_blocks} * info.f_frsize;
  const std::uint64_t bytes = g.block_bytes * g.blocks;
  if (total == 0 || bytes <= total) return {};
  return invalid(std::string("a ") + name_of(part) + " of " + std::to_string(g.blocks) +
                 " blocks needs " + std::to_string(bytes >> 20U) + " MiB, /dev/shm has " +
                 std::to_string(total >> 20U) + " MiB in all: lower " + keys_of(part) +
                 ", or enlarge it (docker: shm_size); " + block_arithmetic(g));
}

}  // namespace

Result<KvGeometry> size_pool(KvGeometry shape, std::uint32_t pool_blocks, std::uint64_t pool_mib) {
  shape.blocks = 1;
  const auto block_bytes = kv_block_bytes(shape);
  if (!block_bytes || *block_bytes == 0) return invalid("the model's KV block has no size");
  shape.block_bytes = *block_bytes;
  if (Status status = kv_check(shape); !status.ok()) return status;

  std::uint64_t blocks = pool_blocks;
  if (blocks == 0) {
    constexpr std::uint64_t kMib = 1U << 20U;
    if (pool_mib > std::numeric_limits<std::uint64_t>::max() / kMib) {
      return invalid("pool_mib " + std::to_string(pool_mib) + " is too large");
    }
    blocks = pool_mib * kMib / shape.block_bytes;
    if (blocks < 2) {
      return invalid("pool_mib " + std::to_string(pool_mib) + " holds " + std::to_string(blocks) +
                     " blocks, at least 2 are needed: " + block_arithmetic(shape));
    }
  }
  shape.blocks = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(blocks, std::numeric_limits<std::uint32_t>::max() - 1));
  if (!kv_pool_bytes(shape)) {
    return invalid(std::to_string(shape.blocks) +
                   " blocks are too many: " + block_arithmetic(shape));
  }
  return shape;
}

Result<KvGeometry> size_host_part(const KvGeometry& pool, const PoolRequest& request) {
  KvGeometry part = pool;
  part.blocks = 0;
  if (request.host_pool_blocks == 0 && request.host_pool_mib == 0) return part;
  std::uint64_t blocks = request.host_pool_blocks;
  if (blocks == 0) {
    const auto bytes = kv_detail::multiply(request.host_pool_mib, 1U << 20U);
    if (!bytes)
      return invalid("host_pool_mib " + std::to_string(request.host_pool_mib) + " is too large");
    blocks = *bytes / pool.block_bytes;
    if (blocks == 0) {
      return invalid("host_pool_mib " + std::to_string(request.host_pool_mib) +
                     " holds no block: " + block_arithmetic(pool));
    }
  }
  // One range of ids for both parts.
  const std::uint64_t ids = std::numeric_limits<BlockId>::max() - std::uint64_t{1};
  part.blocks = static_cast<std::uint32_t>(std::min(blocks, ids));
  if (blocks + pool.blocks > ids || !kv_pool_bytes(part)) {
    return invalid(std::to_string(blocks) + " blocks on the host beside " +
                   std::to_string(pool.blocks) + " are too many: " + block_arithmetic(pool));
  }
  return part;
}

AllocationId make_allocation_id(const std::string& worker, Incarnation incarnation) {
  std::uint64_t hash = mix(incarnation + 0x9E3779B97F4A7C15ULL);
  for (const char c : worker) hash = mix(hash ^ static_cast<unsigned char>(c));
  return hash == 0 ? 1 : hash;
}

Result<KvPool> KvPool::create(const PoolRequest& request, const KvGeometry& geometry,
                              PoolPart part) {
  if (Status status = kv_check(geometry); !status.ok()) return status;
  if (Status status = check_shared_memory(geometry, part); !status.ok()) return status;
  unlink_predecessors(request.run_dir, request.worker, request.allocation);
  unlink_dead_regions(request.run_dir);  // of workers that nobody has started again
  const std::string name =
      region_name(request.run_dir, RegionName{request.worker, request.pid, request.pid_start,
                                              request.allocation, part == PoolPart::host});
  return mapped(ShmRegion::create(name, *kv_pool_bytes(geometry), kPrefault), request.allocation,
                geometry, part);
}

Result<KvPool> KvPool::open(const std::string& region, AllocationId allocation,
                            const KvGeometry& geometry, PoolPart part, ShmOptions options) {
  if (Status status = check_shared_memory(geometry, part); !status.ok()) return status;
  return mapped(ShmRegion::open_writable(region, *kv_pool_bytes(geometry), options), allocation,
                geometry, part);
}

Result<KvPool> KvPool::mapped(Result<ShmRegion> region, AllocationId allocation,
                              const KvGeometry& geometry, PoolPart part) {
  if (!region.ok()) {
    return Status(region.status().code(), region.status().message() + " (" + name_of(part) +
                                              " of " + std::to_string(geometry.blocks) +
                                              " blocks, by " + keys_of(part) + ": " +
                                              block_arithmetic(geometry) + ")");
  }
  KvPool pool;
  pool.region_ = std::move(region).value();
  pool.geometry_ = geometry;
  pool.allocation_ = allocation;
  return pool;
}

}  // namespace baton
