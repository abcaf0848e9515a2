#include "workers/execute/gpu_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "ipc/shm_region.h"
#include "workers/pool/host_memory.h"
#include "workers/pool/lease_client.h"

namespace baton {

namespace {

/// Left alone beside the stated fraction: the driver's own, and what libraries take later.
constexpr std::uint64_t kReserveBytes = std::uint64_t{512} << 20U;

std::string mib(std::uint64_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; }

/// The pool takes what the stated fraction of the GPU leaves after everything else of this worker.
Result<KvGeometry> plan_pool(const PoolRequest& request, const GpuPoolRequest& gpu) {
  if (request.pool_blocks > 0 || request.pool_mib > 0)
    return size_pool(gpu.shape, request.pool_blocks, request.pool_mib);
  const std::uint64_t total = cuda::memory_info().total;
  const auto share = static_cast<std::uint64_t>(gpu.memory_fraction * static_cast<double>(total));
  const std::uint64_t own =
      gpu.workspace_bytes + gpu.weight_bytes + gpu.other_bytes + kReserveBytes;
  const std::string arithmetic = "memory_fraction " + std::to_string(gpu.memory_fraction) + " of " +
                                 mib(total) + " is " + mib(share) + "; weights " +
                                 mib(gpu.weight_bytes) + ", workspace " + mib(gpu.workspace_bytes) +
                                 ", reserve " + mib(kReserveBytes);
  if (share <= own) return invalid("no room for a KV pool: " + arithmetic);
  spdlog::info("{}; the KV pool may take {}", arithmetic, mib(share - own));
  return size_pool(gpu.shape, 0, (share - own) >> 20U);
}

/// Whether the host has room for the part; those neighbours that have theirs took their share, and
/// what is kept for this worker is its own.
Status check_host_room(const PoolRequest& request, const GpuPoolRequest& gpu,
                       const KvGeometry& part) {
  std::uint64_t own = 0;
  std::uint64_t sharers = 1;
  const std::vector<RegionName> regions = list_regions(request.run_dir);
  for (const RegionName& region : regions) {
    if (region.worker == request.worker)
      own += region_bytes(region_name(request.run_dir, region)).value_or(0);
  }
  for (const std::string& name : gpu.neighbours) {
    if (std::none_of(regions.begin(), regions.end(),
                     [&](const RegionName& region) { return region.worker == name; })) {
      ++sharers;
    }
  }
  return check_host_part(*kv_pool_bytes(part), free_host_memory() + own, sharers);
}

/// The error is nobody's fault: then the worker makes its own.
Result<GpuPool> leased_pool(const PoolRequest& request, const GpuPoolRequest& gpu,
                            const std::string& weights, KvGeometry geometry, KvGeometry host_part) {
  if (gpu.memory_socket.empty()) return invalid("there is no memory process");
  auto lease =
      lease_pool(gpu.memory_socket, lease_of(request, geometry, host_part.blocks, weights));
  if (!lease.ok()) return lease.status();
  const Leased& leased = lease.value().answer;
  geometry.blocks = leased.blocks;
  host_part.blocks = leased.host_blocks;
  KvPool host;
  if (host_part.blocks > 0) {
    auto part = KvPool::open(leased.host_handle, leased.allocation, host_part, PoolPart::host);
    if (!part.ok()) return part.status();
    host = std::move(part).value();
  }
  GpuPool made;
  made.pool = std::make_unique<CudaPool>(geometry, leased.device_handle, std::move(host));
  made.allocation = leased.allocation;
  made.kept = leased.kept;
  made.lease = std::move(lease.value().link);
  return made;
}

Result<GpuPool> own_pool(const PoolRequest& request, const KvGeometry& geometry,
                         const KvGeometry& host_part) {
  const std::uint64_t free = cuda::memory_info().free;
  if (*kv_pool_bytes(geometry) > free) {
    // Others hold the rest; a dead predecessor's importers may give it back.
    return Status(ErrorCode::unavailable, "the KV pool would take " +
                                              mib(*kv_pool_bytes(geometry)) + ", but only " +
                                              mib(free) + " are free");
  }
  KvPool host;
  if (host_part.blocks > 0) {
    auto part = KvPool::create(request, host_part, PoolPart::host);
    if (!part.ok()) return part.status();
    host = std::move(part).value();
  }
  GpuPool made;
  made.pool = std::make_unique<CudaPool>(geometry, std::move(host));
  made.allocation = request.allocation;
  return made;
}

}  // namespace

Result<GpuPool> make_gpu_pool(const PoolRequest& asked, const GpuPoolRequest& gpu) {
  PoolRequest request = asked;
  auto geometry = plan_pool(request, gpu);
  if (gpu.agree_on_blocks) {
    request.pool_blocks = gpu.agree_on_blocks(geometry.ok() ? geometry.value().blocks : 0);
    if (request.pool_blocks == 0 && geometry.ok()) {
      return invalid("another rank has no room for a KV pool: its log says why");
    }
    if (geometry.ok()) geometry = size_pool(gpu.shape, request.pool_blocks, 0);
  }
  if (!geometry.ok()) return geometry.status();
  const auto host_part = size_host_part(geometry.value(), request);
  if (!host_part.ok()) return host_part.status();
  if (host_part.value().blocks > 0) {
    if (Status room = check_host_room(request, gpu, host_part.value()); !room.ok()) return room;
  }
  const auto make = [&](const std::string& weights) {
    auto leased = leased_pool(request, gpu, weights, geometry.value(), host_part.value());
    if (leased.ok()) return leased;
    spdlog::info("the KV pool ends with this process: {}", leased.status().message());
    return own_pool(request, geometry.value(), host_part.value());
  };
  return gpu.lease_in_order ? gpu.lease_in_order(make) : make(gpu.weights);
}

}  // namespace baton
