#include "workers/cuda_pool.h"

#include <algorithm>
#include <utility>

#include "workers/cuda/blocks.h"

namespace baton {

namespace {

/// Blocks of one kernel: a longer pull takes several.
constexpr std::size_t kListBlocks = 16'384;
/// Enough for the speed of NVLink, few enough to leave the steps their multiprocessors.
constexpr int kGatherCtas = 32;

struct MappedCudaPool final : MappedPool {
  MappedCudaPool(const std::string& handle, std::uint32_t n) : memory(handle), blocks(n) {}
  cuda::ImportedMemory memory;
  std::uint32_t blocks;
};

}  // namespace

CudaPool::CudaPool(const KvGeometry& geometry)
    : geometry_(geometry),
      memory_(*kv_pool_bytes(geometry)),
      handle_(cuda::export_memory(memory_)) {
  // Nobody reads what was not written, but masked lanes of attention tiles multiply it by zero: it must
  // not be a NaN by chance.
  const cuda::OwnedStream stream;
  cuda::fill_bytes(memory_.data(), 0, memory_.bytes(), stream.get());
  stream.synchronize();
}

struct CudaBlockReader::Lane {
  cuda::OwnedStream stream{/*high_priority=*/true};
  cuda::OwnedEvent done;
  cuda::PinnedMemory ids{2 * kListBlocks * sizeof(BlockId)};
  cuda::DeviceMemory device_ids{2 * kListBlocks * sizeof(BlockId)};
};

CudaBlockReader::CudaBlockReader(const CudaPool& pool, cuda::DeviceInfo device)
    : pool_(pool), device_(std::move(device)) {}
CudaBlockReader::~CudaBlockReader() = default;

Result<std::unique_ptr<MappedPool>> CudaBlockReader::map(const Pull& pull) {
  if (pull.ranks.size() != 1) {
    return invalid("pools of several ranks are not served yet, this one has " +
                   std::to_string(pull.ranks.size()));
  }
  if (pull.ranks[0].device.rfind("GPU-", 0) != 0) {
    return invalid("a worker on a GPU cannot read a pool on " + pull.ranks[0].device);
  }
  try {
    cuda::set_device(device_.ordinal);
    if (!lane_) lane_ = std::make_unique<Lane>();
    return std::unique_ptr<MappedPool>(
        std::make_unique<MappedCudaPool>(pull.ranks[0].handle, pull.exporter_blocks));
  } catch (const cuda::CudaError& e) {
    return Status(ErrorCode::unavailable, device_.uuid + " cannot map the pool on " +
                                              pull.ranks[0].device + ": " + e.what());
  }
}

Status CudaBlockReader::copy(const MappedPool& source, const Pull& pull) {
  const auto& mapped = static_cast<const MappedCudaPool&>(source);
  for (const BlockId from : pull.from) {
    if (from >= mapped.blocks) {
      return invalid("source block " + std::to_string(from) + " is not mapped");
    }
  }
  auto* ids = reinterpret_cast<BlockId*>(lane_->ids.data());
  const auto* device_ids = lane_->device_ids.as<BlockId>();
  const cuda::Stream stream = lane_->stream.get();
  for (std::size_t at = 0; at < pull.from.size(); at += kListBlocks) {
    const std::size_t n = std::min(kListBlocks, pull.from.size() - at);
    std::copy_n(pull.to.begin() + static_cast<std::ptrdiff_t>(at), n, ids);
    std::copy_n(pull.from.begin() + static_cast<std::ptrdiff_t>(at), n, ids + n);
    // The kernel looks an id up for every 16 bytes: from host memory that alone took longer than the
    // blocks did.
    cuda::copy_to_device(lane_->device_ids.data(), ids, 2 * n * sizeof(BlockId), stream);
    cuda::copy_blocks(pool_.data(), mapped.memory.data(), device_ids, device_ids + n,
                      static_cast<int>(n), pool_.geometry().block_bytes, kGatherCtas, stream);
    lane_->done.record(stream);
    lane_->done.synchronize();
  }
  return {};
}

}  // namespace baton
