#include "workers/host_pool.h"

#include <cstring>
#include <utility>

namespace baton {

namespace {

struct MappedRegion final : MappedPool {
  explicit MappedRegion(ShmRegion r) : region(std::move(r)) {}
  ShmRegion region;
};

}  // namespace

Result<PoolExport> HostExecutor::allocate(const PoolRequest& request) {
  const std::uint64_t pool_mib = request.pool_mib == 0 ? planned_mib_ : request.pool_mib;
  auto geometry = size_pool(shape_, request.pool_blocks, pool_mib);
  if (!geometry.ok()) return geometry.status();
  auto pool = KvPool::create(request, geometry.value());
  if (!pool.ok()) return pool.status();
  pool_.emplace(std::move(pool).value());
  return PoolExport{geometry.value(), {PoolRank{"cpu", pool_->handle(), 0}}};
}

std::unique_ptr<BlockReader> HostExecutor::block_reader() {
  return std::make_unique<HostBlockReader>(*pool_);
}

void HostExecutor::collect(StepOutput& output) {
  for (const CopyOp& op : step_->copies) pool_->copy(op);
  if (!step_->rows.empty()) run_rows(*step_, output);
}

Result<std::unique_ptr<MappedPool>> HostBlockReader::map(const Pull& pull) {
  if (pull.ranks.size() != 1) {
    return invalid("a pool on CPUs has one rank, not " + std::to_string(pull.ranks.size()));
  }
  if (pull.ranks[0].device != "cpu") {
    return invalid("a worker on CPUs cannot read a pool on " + pull.ranks[0].device);
  }
  KvGeometry geometry = pool_.geometry();  // pools of another shape are never connected
  geometry.blocks = pull.exporter_blocks;
  const auto bytes = kv_pool_bytes(geometry);
  if (!bytes) return invalid("the source pool has no size");
  auto region = ShmRegion::open_readonly(pull.ranks[0].handle, *bytes);
  if (!region.ok()) return region.status();
  return std::unique_ptr<MappedPool>(
      std::make_unique<MappedRegion>(std::move(region).value()));
}

Status HostBlockReader::copy(const MappedPool& source, const Pull& pull) {
  const ShmRegion& region = static_cast<const MappedRegion&>(source).region;
  const std::uint64_t bytes = pool_.geometry().block_bytes;
  // The mapping may be older than this pull: its own size counts, not what the pull says.
  const std::uint64_t blocks = region.size() / bytes;
  for (const BlockId from : pull.from) {
    if (from >= blocks) return invalid("source block " + std::to_string(from) + " is not mapped");
  }
  for (std::size_t i = 0; i < pull.from.size(); ++i) {
    std::memcpy(pool_.block(pull.to[i]), region.data() + bytes * pull.from[i], bytes);
  }
  return {};
}

}  // namespace baton
