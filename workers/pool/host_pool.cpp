#include "workers/pool/host_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ipc/process.h"
#include "workers/pool/lease_client.h"
#include "workers/protocol/block_sums.h"

namespace baton {

namespace {

struct MappedRegion final : MappedPool {
  MappedRegion(ShmRegion device, ShmRegion host) : parts{std::move(device), std::move(host)} {}
  ~MappedRegion() override {
    if (window) window->remove(allocation);
  }
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  ShmRegion parts[2];  // device, host; the second may be unmapped
  std::shared_ptr<PoolWindow> window;  // that it has a place in, too; null: none
  AllocationId allocation = 0;
};

/// One part of the pool that `pull` names, which has the shape of `own`.
Result<ShmRegion> open_part(const KvGeometry& own, const std::string& handle,
                            std::uint32_t blocks) {
  KvGeometry geometry = own;  // pools of another shape are never connected
  geometry.blocks = blocks;
  const auto bytes = kv_pool_bytes(geometry);
  if (!bytes || *bytes == 0) return invalid("the exporter's pool has no size");
  return ShmRegion::open_readonly(handle, *bytes);
}

}  // namespace

HostPool::HostPool(KvPool device_part, KvPool host_part)
    : parts_{std::move(device_part), std::move(host_part)} {}

std::byte* HostPool::block(BlockId block) {
  const std::uint32_t device_blocks = parts_[0].geometry().blocks;
  return block < device_blocks ? parts_[0].block(block) : parts_[1].block(block - device_blocks);
}

void HostPool::copy(const CopyOp& op) {
  if (op.from == op.to) return;
  std::memcpy(block(op.to), block(op.from), parts_[0].geometry().block_bytes);
}

float HostPool::measure_copy_us() const {
  constexpr std::uint64_t kBytes = 16U << 20U;  // more than a core's caches keep
  constexpr int kRounds = 5;
  const KvGeometry& g = parts_[0].geometry();
  const std::uint64_t fit = std::max<std::uint64_t>(kBytes / g.block_bytes, 1);
  const auto n = static_cast<std::size_t>(
      std::min({fit, std::uint64_t{g.blocks}, std::uint64_t{parts_[1].geometry().blocks}}));
  if (n == 0) return 0;
  std::vector<std::byte> device(n * g.block_bytes, std::byte{1});
  std::vector<std::byte> host(n * g.block_bytes, std::byte{2});
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (int round = 0; round < kRounds; ++round) {
    const TimeNs begin = now_ns();
    for (std::size_t i = 0; i < n; ++i)
      std::memcpy(&host[i * g.block_bytes], &device[i * g.block_bytes], g.block_bytes);
    for (std::size_t i = 0; i < n; ++i)
      std::memcpy(&device[i * g.block_bytes], &host[i * g.block_bytes], g.block_bytes);
    best = std::min(best, now_ns() - begin);
  }
  return static_cast<float>(best) / (2e3F * static_cast<float>(n));
}

Result<HostPool> HostExecutor::make_pool(const PoolRequest& request, const KvGeometry& geometry,
                                         const KvGeometry& host_geometry) const {
  auto pool = KvPool::create(request, geometry);
  if (!pool.ok()) return pool.status();
  KvPool host;
  if (host_geometry.blocks > 0) {
    auto part = KvPool::create(request, host_geometry, PoolPart::host);
    if (!part.ok()) return part.status();
    host = std::move(part).value();
  }
  return HostPool(std::move(pool).value(), std::move(host));
}

/// The error is nobody's fault: then the worker makes its own.
Result<HostPool> HostExecutor::leased_pool(const PoolRequest& request, KvGeometry geometry,
                                           KvGeometry host_geometry, UniqueFd& link) const {
  if (request.memory_socket.empty()) return invalid("no memory process is configured");
  auto lease = lease_pool(request.memory_socket,
                          lease_of(request, geometry, host_geometry.blocks, weights_));
  if (!lease.ok()) return lease.status();
  const Leased& leased = lease.value().answer;
  geometry.blocks = leased.blocks;
  host_geometry.blocks = leased.host_blocks;
  auto pool = KvPool::open(leased.device_handle, leased.allocation, geometry);
  if (!pool.ok()) return pool.status();
  KvPool host;
  if (leased.host_blocks > 0) {
    auto part = KvPool::open(leased.host_handle, leased.allocation, host_geometry, PoolPart::host);
    if (!part.ok()) return part.status();
    host = std::move(part).value();
  }
  link = std::move(lease.value().link);
  return HostPool(std::move(pool).value(), std::move(host));
}

Result<PoolExport> HostExecutor::allocate(const PoolRequest& request) {
  const std::uint64_t pool_mib = request.pool_mib == 0 ? planned_mib_ : request.pool_mib;
  const auto geometry = size_pool(shape_, request.pool_blocks, pool_mib);
  if (!geometry.ok()) return geometry.status();
  const auto host_geometry = size_host_part(geometry.value(), request);
  if (!host_geometry.ok()) return host_geometry.status();
  PoolExport exported;
  auto pool = leased_pool(request, geometry.value(), host_geometry.value(), exported.lease);
  if (!pool.ok()) pool = make_pool(request, geometry.value(), host_geometry.value());
  if (!pool.ok()) return pool.status();
  pool_.emplace(std::move(pool).value());
  const KvGeometry& g = this->pool().geometry();
  window_ = std::make_shared<PoolWindow>(this->pool().allocation(),
                                         std::span(this->pool().data(), g.block_bytes * g.blocks),
                                         g.block_bytes);
  if (request.tells_layers) progress_.create(request);
  exported.progress_handle = progress_.handle();
  exported.geometry = this->pool().geometry();
  exported.ranks = {PoolRank{"cpu", this->pool().handle()}};
  exported.host_handle = pool_->host_part().handle();
  exported.host_blocks = pool_->host_part().geometry().blocks;
  exported.host_block_us = pool_->measure_copy_us();
  exported.allocation = this->pool().allocation();
  return exported;
}

std::unique_ptr<BlockReader> HostExecutor::block_reader() {
  return std::make_unique<HostBlockReader>(pool(), window_);
}

/// The protocol core has seen to it that every pool is there, and stays for this step.
void HostExecutor::collect(StepOutput& output) {
  for (const CopyOp& op : step_->copies) pool_->copy(op);
  in_place_ = step_->reads_in_place;
  if (in_place_) resolve_rows(*step_, *window_, tables_);
  progress_.begin(*step_, awaited_);
  if (!step_->rows.empty()) run_rows(*step_, output);
  awaited_.tell(output);
  const std::uint64_t bytes = pool().geometry().block_bytes;
  for (const BlockId block : step_->summed)
    output.sums.push_back(checksum(pool_->block(block), bytes));
}

void HostExecutor::await_layers(std::uint32_t layers) { progress_.await(*step_, layers, awaited_); }

void HostExecutor::layers_written(std::uint32_t layers) {
  if (!awaited_.in_vain()) progress_.written(step_->term, step_->step, layers);
}

Result<std::unique_ptr<MappedPool>> HostBlockReader::map(const Pull& pull) {
  // The ranks of a worker on CPUs have one pool, with all heads, which each of them maps.
  const bool one = std::all_of(pull.ranks.begin(), pull.ranks.end(), [&](const PoolRank& rank) {
    return rank.handle == pull.ranks.front().handle;
  });
  if (pull.ranks.empty() || !one) return invalid("a worker on CPUs has one pool for all its ranks");
  if (pull.ranks[0].device != "cpu") {
    return invalid("a worker on CPUs cannot read a pool on " + pull.ranks[0].device);
  }
  auto device = open_part(pool_.geometry(), pull.ranks[0].handle, pull.exporter_blocks);
  if (!device.ok()) return device.status();
  ShmRegion host;
  if (pull.exporter_host_blocks > 0) {
    auto part = open_part(pool_.geometry(), pull.exporter_host_handle, pull.exporter_host_blocks);
    if (!part.ok()) return part.status();
    host = std::move(part).value();
  }
  return std::unique_ptr<MappedPool>(
      std::make_unique<MappedRegion>(std::move(device).value(), std::move(host)));
}

Status HostBlockReader::copy(MappedPool& exported, const Pull& pull) {
  const ShmRegion(&parts)[2] = static_cast<MappedRegion&>(exported).parts;
  const std::uint64_t bytes = pool_.geometry().block_bytes;
  // The mapping may be older than this pull: its own size counts, not what the pull says.
  const std::uint64_t device_blocks = parts[0].size() / bytes;
  const std::uint64_t blocks = device_blocks + parts[1].size() / bytes;
  for (const BlockId from : pull.from) {
    if (from >= blocks) return invalid("source block " + std::to_string(from) + " is not mapped");
  }
  for (std::size_t i = 0; i < pull.from.size(); ++i) {
    const BlockId from = pull.from[i];
    const std::byte* source_block = from < device_blocks
                                        ? parts[0].data() + bytes * from
                                        : parts[1].data() + bytes * (from - device_blocks);
    std::memcpy(pool_.block(pull.to[i]), source_block, bytes);
  }
  return {};
}

Status HostBlockReader::place(MappedPool& exported, const Pull& pull) {
  if (!window_) return invalid("this worker's rows read no pool but its own");
  auto& region = static_cast<MappedRegion&>(exported);
  if (region.window) return {};
  const Status status =
      window_->add(pull.allocation, std::span(region.parts[0].data(), region.parts[0].size()));
  if (!status.ok()) return status;
  region.allocation = pull.allocation;
  region.window = window_;
  return {};
}

Result<std::vector<std::uint64_t>> HostBlockReader::sums(const std::vector<BlockId>& blocks) {
  std::vector<std::uint64_t> sums;
  for (const BlockId block : blocks) {
    sums.push_back(checksum(pool_.block(block), pool_.geometry().block_bytes));
  }
  return sums;
}

}  // namespace baton
