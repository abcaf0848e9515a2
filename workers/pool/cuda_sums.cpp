#include "workers/pool/cuda_sums.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "workers/cuda/blocks.h"
#include "workers/protocol/block_sums.h"

namespace baton {

namespace {

/// Of memory that is summed as a whole: enough for all multiprocessors, few enough sums.
constexpr std::size_t kPieceBytes = std::size_t{16} << 20U;
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

std::uint64_t sum_of_memory(const std::byte* memory, std::size_t bytes) {
  const std::size_t whole = bytes / kPieceBytes;
  const std::size_t rest = bytes % kPieceBytes;
  std::vector<BlockId> ids(whole + 1);
  std::iota(ids.begin(), ids.end(), BlockId{0});
  std::vector<std::uint64_t> sums(whole + 1);
  const cuda::DeviceMemory device_ids(ids.size() * sizeof(BlockId));
  const cuda::DeviceMemory device_sums(sums.size() * sizeof(std::uint64_t));
  const cuda::OwnedStream stream;
  cuda::copy_to_device(device_ids.data(), ids.data(), device_ids.bytes(), stream.get());
  cuda::fill_bytes(device_sums.data(), 0, device_sums.bytes(), stream.get());
  const auto queue = [&](const std::byte* from, std::size_t n, std::size_t piece, std::size_t to) {
    if (n == 0 || piece == 0) return;
    cuda::checksum_blocks(cuda::ConstPoolParts(from), device_ids.as<BlockId>(), static_cast<int>(n),
                          piece, device_sums.as<std::uint64_t>(to * sizeof(std::uint64_t)),
                          stream.get());
  };
  queue(memory, whole, kPieceBytes, 0);
  queue(memory + whole * kPieceBytes, 1, rest, whole);
  cuda::copy_to_host(sums.data(), device_sums.data(), device_sums.bytes(), stream.get());
  stream.synchronize();
  return checksum(reinterpret_cast<const std::byte*>(sums.data()),
                  sums.size() * sizeof(std::uint64_t));
}

}  // namespace baton
