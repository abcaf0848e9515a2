#include "workers/cuda/blocks.h"

#include <algorithm>
#include <string>

#include "workers/cuda/launch.cuh"
#include "workers/protocol/block_sums.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 512;
/// Loads in flight a thread: 64 KiB a CTA, so that 16 CTAs keep the megabyte under way that a link
/// of 400 GB/s with 2 us of latency asks for.
constexpr int kUnroll = 8;
constexpr unsigned kChunk = kThreads * kUnroll;  // 16-byte vectors

/// Past the L1 cache: every byte is used once.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

template <typename Parts>
__device__ __forceinline__ auto* block_of(const Parts& pool, std::uint32_t id, unsigned vectors) {
  const bool on_host = id >= pool.device_blocks;
  return (on_host ? pool.host : pool.device) +
         std::uint64_t{on_host ? id - pool.device_blocks : id} * vectors * sizeof(uint4);
}

/// The listed blocks as one run of vectors, cut in chunks: small blocks fill a chunk together,
/// large ones take several. A CTA takes neighbouring chunks, so that the CTAs read different pages
/// at a time: in step through one page after another, all of them would wait for each page's
/// translation.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const PoolParts to_pool, const ConstPoolParts from_pool, const std::uint32_t* to,
                const std::uint32_t* from, unsigned vectors, std::uint64_t all_vectors) {
  const std::uint64_t chunks = (all_vectors + kChunk - 1) / kChunk;
  const std::uint64_t share = (chunks + gridDim.x - 1) / gridDim.x;
  const std::uint64_t end = min(all_vectors, (blockIdx.x + 1) * share * kChunk);
  for (std::uint64_t base = blockIdx.x * share * kChunk; base < end; base += kChunk) {
    const auto first = static_cast<unsigned>(base / vectors);
    const auto skipped = static_cast<unsigned>(base - std::uint64_t{first} * vectors);
    uint4 held[kUnroll];
    uint4* target[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const unsigned step = threadIdx.x + i * kThreads;
      target[i] = nullptr;
      if (base + step >= end) continue;
      const unsigned pair = first + (skipped + step) / vectors;
      const unsigned at = (skipped + step) % vectors;
      held[i] =
          load_once(reinterpret_cast<const uint4*>(block_of(from_pool, from[pair], vectors)) + at);
      target[i] = reinterpret_cast<uint4*>(block_of(to_pool, to[pair], vectors)) + at;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (target[i] != nullptr) *target[i] = held[i];
    }
  }
}

/// Everything in vectors of 16 bytes. A CTA takes neighbouring chunks, as above.
struct HeadVectors {
  unsigned parts, width, to_block, to_stride, to_first, from_block, from_stride, from_first;
};

__global__ void __launch_bounds__(kThreads)
    copy_heads_kernel(uint4* to_pool, const uint4* from_pool, const std::uint32_t* to,
                      const std::uint32_t* from, HeadVectors v, std::uint64_t all_vectors) {
  const std::uint64_t chunks = (all_vectors + kChunk - 1) / kChunk;
  const std::uint64_t share = (chunks + gridDim.x - 1) / gridDim.x;
  const std::uint64_t end = min(all_vectors, (blockIdx.x + 1) * share * kChunk);
  const unsigned pair_vectors = v.parts * v.width;
  for (std::uint64_t base = blockIdx.x * share * kChunk; base < end; base += kChunk) {
    uint4 held[kUnroll];
    uint4* target[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::uint64_t at = base + threadIdx.x + i * kThreads;
      target[i] = nullptr;
      if (at >= end) continue;
      const auto pair = static_cast<unsigned>(at / pair_vectors);
      const auto in_pair = static_cast<unsigned>(at - std::uint64_t{pair} * pair_vectors);
      const unsigned part = in_pair / v.width;
      const unsigned column = in_pair - part * v.width;
      held[i] = load_once(from_pool + std::uint64_t{from[pair]} * v.from_block +
                          std::uint64_t{part} * v.from_stride + v.from_first + column);
      target[i] = to_pool + std::uint64_t{to[pair]} * v.to_block +
                  std::uint64_t{part} * v.to_stride + v.to_first + column;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (target[i] != nullptr) *target[i] = held[i];
    }
  }
}

/// blockIdx.x names the block, blockIdx.y the chunk of it. Integer sums: any order gives the same.
__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const ConstPoolParts pool, const std::uint32_t* ids, unsigned vectors,
                    unsigned long long* sums) {
  const auto* const block =
      reinterpret_cast<const uint4*>(block_of(pool, ids[blockIdx.x], vectors));
  std::uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const unsigned at = blockIdx.y * kChunk + threadIdx.x + i * kThreads;
    if (at >= vectors) continue;
    const uint4 v = load_once(block + at);
    sum += checksum_word(v.x | std::uint64_t{v.y} << 32, 2 * std::uint64_t{at});
    sum += checksum_word(v.z | std::uint64_t{v.w} << 32, 2 * std::uint64_t{at} + 1);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.x, static_cast<unsigned long long>(sum));
}

unsigned vectors_of(const char* call, std::size_t block_bytes) {
  if (block_bytes == 0 || block_bytes % 16 != 0 || block_bytes / 16 > 0x7FFFFFFFU) {
    throw CudaError(std::string(call) + ": block_bytes is no multiple of 16 below 32 GiB");
  }
  return static_cast<unsigned>(block_bytes / 16);
}

}  // namespace

void copy_blocks(const PoolParts& to_pool, const ConstPoolParts& from_pool, const std::uint32_t* to,
                 const std::uint32_t* from, int n, std::size_t block_bytes, int max_ctas,
                 Stream stream) {
  if (n <= 0) return;
  const unsigned vectors = vectors_of("copy_blocks", block_bytes);
  const std::uint64_t all = std::uint64_t{vectors} * static_cast<unsigned>(n);
  const std::uint64_t ctas = std::min<std::uint64_t>((all + kChunk - 1) / kChunk,
                                                     static_cast<unsigned>(std::max(max_ctas, 1)));
  copy_kernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(to_pool, from_pool, to, from,
                                                                    vectors, all);
  check(cudaGetLastError(), "copy_blocks");
}

void copy_heads(std::byte* to_pool, const std::byte* from_pool, const std::uint32_t* to,
                const std::uint32_t* from, int n, const HeadRange& range, int max_ctas,
                Stream stream) {
  if (n <= 0) return;
  const auto vectors = [](std::size_t bytes) { return vectors_of("copy_heads", bytes); };
  const auto offset = [&](std::size_t bytes) { return bytes == 0 ? 0 : vectors(bytes); };
  const HeadVectors v{
      static_cast<unsigned>(range.parts), vectors(range.bytes),    vectors(range.to_block),
      vectors(range.to_stride),           offset(range.to_first),  vectors(range.from_block),
      vectors(range.from_stride),         offset(range.from_first)};
  const std::uint64_t all = std::uint64_t{v.parts} * v.width * static_cast<unsigned>(n);
  const std::uint64_t ctas = std::min<std::uint64_t>((all + kChunk - 1) / kChunk,
                                                     static_cast<unsigned>(std::max(max_ctas, 1)));
  copy_heads_kernel<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(
      reinterpret_cast<uint4*>(to_pool), reinterpret_cast<const uint4*>(from_pool), to, from, v,
      all);
  check(cudaGetLastError(), "copy_heads");
}

void checksum_blocks(const ConstPoolParts& pool, const std::uint32_t* ids, int n,
                     std::size_t block_bytes, std::uint64_t* sums, Stream stream) {
  if (n <= 0) return;
  const unsigned vectors = vectors_of("checksum_blocks", block_bytes);
  check(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(n) * sizeof(*sums), stream),
        "checksum_blocks");
  const dim3 grid(static_cast<unsigned>(n), (vectors + kChunk - 1) / kChunk);
  checksum_kernel<<<grid, kThreads, 0, stream>>>(pool, ids, vectors,
                                                 reinterpret_cast<unsigned long long*>(sums));
  check(cudaGetLastError(), "checksum_blocks");
}

}  // namespace baton::cuda
