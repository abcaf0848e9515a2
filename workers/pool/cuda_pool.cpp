#include "workers/pool/cuda_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "ipc/shm_region.h"
#include "workers/pool/cuda_sums.h"
#include "workers/pool/lease_client.h"

namespace baton {

namespace {

/// Blocks of one kernel: a longer pull takes several.
constexpr std::size_t kListBlocks = 16'384;
/// Enough for the speed of NVLink, few enough to leave the steps their multiprocessors.
constexpr int kGatherCtas = 32;
/// Of each of two buffers: while the device reads one, the processor fills the other.
constexpr std::size_t kStageBytes = std::size_t{8} << 20U;

}  // namespace

CudaPool::CudaPool(const KvGeometry& geometry, KvPool host_part)
    : geometry_(geometry),
      memory_(*kv_pool_bytes(geometry)),
      handle_(cuda::export_memory(memory_)),
      host_part_(std::move(host_part)) {
  // Nobody reads what was not written, but masked lanes of attention tiles multiply it by zero: it
  // must not be a NaN by chance.
  const cuda::OwnedStream stream;
  cuda::fill_bytes(memory_.data(), 0, memory_.bytes(), stream.get());
  stream.synchronize();
  register_host_part();
}

CudaPool::CudaPool(const KvGeometry& geometry, const std::string& handle, KvPool host_part)
    : geometry_(geometry),
      memory_(cuda::DeviceMemory::import(handle, *kv_pool_bytes(geometry))),
      handle_(handle),
      host_part_(std::move(host_part)) {
  register_host_part();
}

void CudaPool::register_host_part() {
  if (host_part_.geometry().blocks == 0) return;
  registered_ = cuda::RegisteredMemory(host_part_.data(), *kv_pool_bytes(host_part_.geometry()),
                                       /*read_only=*/false);
}

struct CudaBlockReader::Lane {
  CudaSums sums;
  cuda::OwnedStream stream{/*high_priority=*/true};
  cuda::OwnedEvent done;
  cuda::PinnedMemory ids{2 * kListBlocks * sizeof(BlockId)};
  cuda::DeviceMemory device_ids{2 * kListBlocks * sizeof(BlockId)};
};

struct CudaBlockReader::Source {
  HeadSource heads;
  UniqueFd hold;  // let go when the memory is unmapped: see hold_mapping()
  std::unique_ptr<cuda::ImportedMemory> memory;
};

struct CudaBlockReader::Mapped final : MappedPool {
  Mapped(const Pull& pull, std::vector<Source> ranks, ShmRegion host_part, std::size_t slice_bytes)
      : sources(std::move(ranks)),
        blocks(pull.exporter_blocks),
        host(std::move(host_part)),
        host_blocks(host.mapped() ? pull.exporter_host_blocks : 0),
        slices((host.size() + slice_bytes - 1) / slice_bytes) {}
  ~Mapped() override {
    if (pools) pools->remove(allocation);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  std::vector<Source> sources;
  std::unique_ptr<HeldPool> held;  // once more, on the device that it lies on
  std::uint32_t blocks;
  ShmRegion host;
  std::uint32_t host_blocks;
  std::vector<cuda::RegisteredMemory> slices;  // of `host`, once they were needed
  bool not_lockable = false;
  std::shared_ptr<PoolNumbers> pools;  // where it has a number, too; null: no row names its blocks
  AllocationId allocation = 0;
};

struct CudaBlockReader::Stage {
  /// The i-th block of the buffer comes from its i-th place.
  explicit Stage(std::size_t n, std::size_t block_bytes)
      : capacity(n),
        blocks(n * block_bytes),
        ids(2 * n * sizeof(BlockId)),
        device_ids(2 * n * sizeof(BlockId)) {
    auto* const from = reinterpret_cast<BlockId*>(ids.data()) + n;
    std::iota(from, from + n, BlockId{0});
  }
  std::size_t capacity;
  cuda::PinnedMemory blocks;
  cuda::PinnedMemory ids;  // targets, then places in the buffer
  cuda::DeviceMemory device_ids;
  cuda::OwnedEvent read;  // the device has read it
};

CudaBlockReader::CudaBlockReader(const CudaPool& pool, cuda::DeviceInfo device, Options options)
    : pool_(pool), device_(std::move(device)), options_(options) {}
CudaBlockReader::~CudaBlockReader() = default;

/// Before a pool is mapped whose memory another process gives.
Result<UniqueFd> CudaBlockReader::hold(const std::string& handle) const {
  const std::string keeper = keeper_of(handle);
  if (keeper.empty()) return UniqueFd();
  return hold_mapping(options_.run_dir + "/" + keeper + ".sock", handle);
}

Result<std::unique_ptr<MappedPool>> CudaBlockReader::map(const Pull& pull) {
  for (const PoolRank& rank : pull.ranks) {
    if (rank.device.rfind("GPU-", 0) == 0) continue;
    return invalid("a worker on a GPU cannot read a pool on " + rank.device);
  }
  if (pull.ranks.empty()) return invalid("the exporter has no pool");
  const KvGeometry& own = pool_.geometry();
  const int heads = options_.kv_heads > 0 ? options_.kv_heads : static_cast<int>(own.kv_heads);
  std::vector<Source> sources;
  for (const HeadSource& source :
       head_sources(own, options_.cut, heads, static_cast<int>(pull.ranks.size()))) {
    sources.emplace_back().heads = source;
  }
  ShmRegion host;
  if (pull.exporter_host_blocks > 0 && sources.front().heads.whole) {
    KvGeometry geometry = own;  // pools of another shape are never connected
    geometry.blocks = pull.exporter_host_blocks;
    const auto bytes = kv_pool_bytes(geometry);
    if (!bytes) return invalid("the exporter's host part has no size");
    auto region = ShmRegion::open_readonly(pull.exporter_host_handle, *bytes);
    if (!region.ok()) return region.status();
    host = std::move(region).value();
  }
  std::string device;
  try {
    cuda::set_device(device_.ordinal);
    if (!lane_) lane_ = std::make_unique<Lane>();
    for (Source& source : sources) {
      const PoolRank& rank = pull.ranks[static_cast<std::size_t>(source.heads.rank)];
      device = rank.device;
      auto held = hold(rank.handle);
      if (!held.ok()) return held.status();
      source.hold = std::move(held).value();
      source.memory = std::make_unique<cuda::ImportedMemory>(rank.handle);
    }
    return std::unique_ptr<MappedPool>(
        std::make_unique<Mapped>(pull, std::move(sources), std::move(host), options_.slice_bytes));
  } catch (const cuda::CudaError& e) {
    return Status(ErrorCode::unavailable,
                  device_.uuid + " cannot map the pool on " + device + ": " + e.what());
  }
}

/// Whether the device can read this block of the host part itself: its slices are page-locked, or
/// can be.
bool CudaBlockReader::page_lock(Mapped& exported, BlockId host_block, int& slices_left) const {
  const std::size_t block_bytes = pool_.geometry().block_bytes;
  const std::size_t begin = block_bytes * host_block;
  const std::size_t last = (begin + block_bytes - 1) / options_.slice_bytes;
  for (std::size_t i = begin / options_.slice_bytes; i <= last; ++i) {
    if (exported.slices[i]) continue;
    if (exported.not_lockable || slices_left == 0) return false;
    --slices_left;
    const std::size_t offset = i * options_.slice_bytes;
    const std::byte* const data = exported.host.data() + offset;
    try {
      cuda::RegisteredMemory slice(
          data, std::min(options_.slice_bytes, exported.host.size() - offset), /*read_only=*/true);
      // Slices are read as one piece: under the addresses that they have here.
      if (slice.device_data() != data) throw cuda::CudaError("the device has other addresses");
      exported.slices[i] = std::move(slice);
    } catch (const cuda::CudaError& e) {
      exported.not_lockable = true;
      spdlog::info("{} is read through buffers: {}", exported.host.name(), e.what());
      return false;
    }
  }
  return true;
}

Status CudaBlockReader::copy(MappedPool& exported, const Pull& pull) {
  auto& mapped = static_cast<Mapped&>(exported);
  for (const BlockId from : pull.from) {
    if (from >= std::uint64_t{mapped.blocks} + mapped.host_blocks) {
      return invalid("source block " + std::to_string(from) + " is not mapped" +
                     (mapped.sources.front().heads.whole
                          ? ""
                          : ": host parts are not read by a worker of "
                            "another number of ranks"));
    }
  }
  int slices_left = options_.slices_a_pull;
  std::vector<BlockId> from;
  std::vector<BlockId> to;
  std::vector<BlockId> staged_from;  // of the host part
  std::vector<BlockId> staged_to;
  for (std::size_t i = 0; i < pull.from.size(); ++i) {
    const BlockId block = pull.from[i];
    if (block < mapped.blocks || page_lock(mapped, block - mapped.blocks, slices_left)) {
      from.push_back(block);
      to.push_back(pull.to[i]);
    } else {
      staged_from.push_back(block - mapped.blocks);
      staged_to.push_back(pull.to[i]);
    }
  }
  if (!staged_from.empty()) {
    if (Status status = make_stages(); !status.ok()) return status;
    copy_staged(mapped.host.data(), staged_from, staged_to);
  }
  gather(mapped, from, to);
  return {};
}

Status CudaBlockReader::place(MappedPool& exported, const Pull& pull) {
  if (!options_.pools) return invalid("this worker's rows read no pool but its own");
  auto& mapped = static_cast<Mapped&>(exported);
  if (mapped.pools) return {};
  const Source& source = mapped.sources.front();
  if (mapped.sources.size() > 1 || !source.heads.whole) {
    return invalid("rows read no pool whose blocks have other heads");
  }
  std::unique_ptr<HeldPool> held;
  if (options_.holders) {
    const PoolRank& rank = pull.ranks[static_cast<std::size_t>(source.heads.rank)];
    held = options_.holders->map(rank.device, rank.handle);
  }
  const Status status = options_.pools->add(pull.allocation, source.memory->data(), mapped.blocks,
                                            held ? held->seen() : PoolHolder());
  if (!status.ok()) return status;
  mapped.held = std::move(held);
  mapped.allocation = pull.allocation;
  mapped.pools = options_.pools;
  return {};
}

void CudaBlockReader::gather(const Mapped& exported, const std::vector<BlockId>& from,
                             const std::vector<BlockId>& to) {
  auto* ids = reinterpret_cast<BlockId*>(lane_->ids.data());
  const auto* device_ids = lane_->device_ids.as<BlockId>();
  const cuda::Stream stream = lane_->stream.get();
  for (std::size_t at = 0; at < from.size(); at += kListBlocks) {
    const std::size_t n = std::min(kListBlocks, from.size() - at);
    std::copy_n(to.begin() + static_cast<std::ptrdiff_t>(at), n, ids);
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), n, ids + n);
    // The kernel looks an id up for every 16 bytes: from host memory that alone took longer than
    // the blocks did.
    cuda::copy_to_device(lane_->device_ids.data(), ids, 2 * n * sizeof(BlockId), stream);
    for (const Source& source : exported.sources) {
      if (source.heads.whole) {
        cuda::copy_blocks(pool_.parts(),
                          {source.memory->data(), exported.host.data(), exported.blocks},
                          device_ids, device_ids + n, static_cast<int>(n),
                          pool_.geometry().block_bytes, kGatherCtas, stream);
      } else {
        cuda::copy_heads(pool_.data(), source.memory->data(), device_ids, device_ids + n,
                         static_cast<int>(n), source.heads.range, kGatherCtas, stream);
      }
    }
    lane_->done.record(stream);
    lane_->done.synchronize();
  }
}

Result<std::vector<std::uint64_t>> CudaBlockReader::sums(const std::vector<BlockId>& blocks) {
  lane_->sums.queue(pool_, blocks, lane_->stream.get());
  lane_->stream.synchronize();
  return lane_->sums.take();
}

Status CudaBlockReader::make_stages() {
  const std::size_t block_bytes = pool_.geometry().block_bytes;
  const std::size_t capacity = std::max<std::size_t>(1, kStageBytes / block_bytes);
  try {
    for (auto& stage : stages_) {
      if (!stage) stage = std::make_unique<Stage>(capacity, block_bytes);
    }
  } catch (const cuda::CudaError& e) {
    return Status(ErrorCode::unavailable, std::string("no buffers for a host part: ") + e.what());
  }
  return {};
}

void CudaBlockReader::copy_staged(const std::byte* host_part, const std::vector<BlockId>& from,
                                  const std::vector<BlockId>& to) {
  const std::size_t block_bytes = pool_.geometry().block_bytes;
  const cuda::Stream stream = lane_->stream.get();
  std::size_t turn = 0;
  for (std::size_t at = 0; at < from.size(); ++turn) {
    Stage& stage = *stages_[turn % 2];
    const std::size_t n = std::min(stage.capacity, from.size() - at);
    stage.read.synchronize();
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(stage.blocks.data() + i * block_bytes, host_part + from[at + i] * block_bytes,
                  block_bytes);
    }
    std::copy_n(to.begin() + static_cast<std::ptrdiff_t>(at), n,
                reinterpret_cast<BlockId*>(stage.ids.data()));
    cuda::copy_to_device(stage.device_ids.data(), stage.ids.data(), stage.ids.bytes(), stream);
    const auto* const ids = stage.device_ids.as<BlockId>();
    cuda::copy_blocks(pool_.parts(), stage.blocks.data(), ids, ids + stage.capacity,
                      static_cast<int>(n), block_bytes, kGatherCtas, stream);
    stage.read.record(stream);
    at += n;
  }
  lane_->done.record(stream);
  lane_->done.synchronize();
}

}  // namespace baton
