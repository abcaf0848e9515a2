#include "workers/pool/cuda_sums.h"

#include <algorithm>
#include <utility>

#include "workers/cuda/blocks.h"

namespace baton {

namespace {

constexpr std::size_t kBytesABlock = sizeof(std::uint64_t) + sizeof(BlockId);

}  // namespace

void CudaSums::queue(const CudaPool& pool, std::span<const BlockId> blocks, cuda::Stream stream) {
  n_ = blocks.size();
  if (n_ == 0) return;
  if (host_.bytes() < n_ * kBytesABlock) {
    host_ = cuda::PinnedMemory(2 * n_ * kBytesABlock);
    device_ = cuda::DeviceMemory(2 * n_ * kBytesABlock);
  }
  const std::size_t ids_at = n_ * sizeof(std::uint64_t);
  std::copy(blocks.begin(), blocks.end(), reinterpret_cast<BlockId*>(host_.data() + ids_at));
  cuda::copy_to_device(device_.data() + ids_at, host_.data() + ids_at, n_ * sizeof(BlockId),
                       stream);
  cuda::checksum_blocks(pool.parts(), device_.as<BlockId>(ids_at), static_cast<int>(n_),
                        pool.geometry().block_bytes, device_.as<std::uint64_t>(), stream);
  cuda::copy_to_host(host_.data(), device_.data(), n_ * sizeof(std::uint64_t), stream);
}

std::vector<std::uint64_t> CudaSums::take() {
  const auto* const sums = reinterpret_cast<const std::uint64_t*>(host_.data());
  return {sums, sums + std::exchange(n_, 0)};
}

}  // namespace baton
