#include "workers/pool/cuda_copies.h"

#include <algorithm>

#include "workers/cuda/blocks.h"

namespace baton {

namespace {

constexpr std::size_t kFirstListBytes = 64 << 10;

template <typename Memory>
void grow(Memory& memory, std::size_t bytes) {
  if (memory.bytes() >= bytes) return;
  memory = Memory();  // freed first
  memory = Memory(std::max(kFirstListBytes, 2 * bytes));
}

}  // namespace

CudaCopies::CudaCopies(const CudaPool& pool, int multiprocessors, int lanes)
    : pool_(pool),
      ctas_(2 * multiprocessors),
      lists_(static_cast<std::size_t>(lanes)),
      groups_(std::size_t{pool.geometry().blocks} + pool.host_part().geometry().blocks) {
  for (cuda::PinnedMemory& list : lists_) grow(list, kFirstListBytes);
  grow(device_list_, kFirstListBytes);
}

void CudaCopies::queue(const std::vector<CopyOp>& copies, int lane, cuda::Stream stream) {
  if (copies.empty()) return;
  const std::size_t n = copies.size();
  const std::size_t bytes = 2 * n * sizeof(BlockId);
  cuda::PinnedMemory& list = lists_[static_cast<std::size_t>(lane)];
  grow(list, bytes);
  grow(device_list_, bytes);  // freeing waits for the kernels that read the smaller one
  auto* const to = reinterpret_cast<BlockId*>(list.data());
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = copies[i].to;
    to[n + i] = copies[i].from;
  }
  cuda::copy_to_device(device_list_.data(), to, bytes, stream);
  const auto* const ids = device_list_.as<BlockId>();
  std::size_t begin = 0;
  for (const std::size_t end : groups_.split(copies)) {
    cuda::copy_blocks(pool_.parts(), pool_.parts(), ids + begin, ids + n + begin,
                      static_cast<int>(end - begin), pool_.geometry().block_bytes, ctas_, stream);
    begin = end;
  }
}

float CudaCopies::measure_host_block_us(cuda::Stream stream) {
  constexpr std::uint32_t kBlocks = 32;
  constexpr int kRounds = 4;  // the first ones wake the clocks up
  const std::uint32_t device_blocks = pool_.geometry().blocks;
  const std::uint32_t n = std::min({kBlocks, device_blocks, pool_.host_part().geometry().blocks});
  if (n == 0) return 0;
  std::vector<CopyOp> out;
  std::vector<CopyOp> in;
  for (BlockId i = 0; i < n; ++i) {
    out.push_back({i, device_blocks + i});
    in.push_back({device_blocks + i, i});
  }
  const cuda::OwnedEvent begin(/*timing=*/true);
  const cuda::OwnedEvent end(/*timing=*/true);
  float best = 0;
  for (int round = 0; round < kRounds; ++round) {
    begin.record(stream);
    queue(out, 0, stream);
    end.record(stream);
    end.synchronize();
    float us = cuda::OwnedEvent::microseconds(begin, end);
    begin.record(stream);
    queue(in, 0, stream);
    end.record(stream);
    end.synchronize();
    us += cuda::OwnedEvent::microseconds(begin, end);
    best = round == 0 ? us : std::min(best, us);
  }
  return best / (2 * static_cast<float>(n));
}

}  // namespace baton
