// Copies and checksums of KV blocks, against the host.
#include "workers/cuda/blocks.h"

#include <cstdio>
#include <numeric>

#include "tests/gpu/device_fixture.h"
#include "workers/protocol/block_sums.h"

namespace baton::cuda {
namespace {

class BlocksTest : public DeviceTest {};

std::vector<std::uint64_t> random_words(std::size_t n) {
  std::mt19937_64 random(11);
  std::vector<std::uint64_t> words(n);
  for (std::uint64_t& w : words) w = random();
  return words;
}

std::byte* bytes(const Device<std::uint64_t>& d) { return reinterpret_cast<std::byte*>(d.get()); }

std::vector<std::uint32_t> shuffled(std::uint32_t n, unsigned seed) {
  std::vector<std::uint32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0U);
  std::shuffle(ids.begin(), ids.end(), std::minstd_rand(seed));
  return ids;
}

TEST_F(BlocksTest, CopiesTheListedBlocksAndNothingElse) {
  constexpr std::uint32_t kBlocks = 23;
  constexpr int kCopied = 17;
  for (const std::size_t block_bytes : {16, 48, 4080, 65536, 65552, 300000}) {
    for (const int ctas : {1, 5, 64}) {
      const std::size_t words = block_bytes / 8;
      const auto from = random_words(kBlocks * words);
      const auto to_ids = shuffled(kBlocks, 1);
      const auto from_ids = shuffled(kBlocks, 2);
      Device<std::uint64_t> source(from), target(from.size());
      Device<std::uint32_t> dt(to_ids), df(from_ids);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      copy_blocks(bytes(target), bytes(source), dt.get(), df.get(), kCopied, block_bytes, ctas,
                  stream_);
      std::vector<std::uint64_t> want(from.size(), ~std::uint64_t{0});
      for (std::size_t i = 0; i < kCopied; ++i) {
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_ids[i] * words), words,
                    want.begin() + static_cast<std::ptrdiff_t>(to_ids[i] * words));
      }
      EXPECT_EQ(target.read(), want) << block_bytes << " bytes, " << ctas << " CTAs";
    }
  }
}

TEST_F(BlocksTest, CopiesTheListedHeadsAndNothingElse) {
  constexpr std::uint32_t kBlocks = 11;
  constexpr int kCopied = 7;
  HeadRange range;  // 16 bytes are a token of a head here
  range.parts = 6;
  range.bytes = 96;
  range.to_stride = 160;
  range.to_first = 48;
  range.from_stride = 256;
  range.from_first = 128;
  range.to_block = range.parts * range.to_stride;
  range.from_block = range.parts * range.from_stride;
  const auto from = random_words(kBlocks * range.from_block / 8);
  const auto to_ids = shuffled(kBlocks, 1);
  const auto from_ids = shuffled(kBlocks, 2);
  Device<std::uint64_t> source(from), target(kBlocks * range.to_block / 8);
  Device<std::uint32_t> dt(to_ids), df(from_ids);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  copy_heads(bytes(target), bytes(source), dt.get(), df.get(), kCopied, range, 3, stream_);
  std::vector<std::uint64_t> want(kBlocks * range.to_block / 8, ~std::uint64_t{0});
  for (std::size_t i = 0; i < kCopied; ++i) {
    for (std::size_t part = 0; part < range.parts; ++part) {
      const std::size_t at =
          from_ids[i] * range.from_block + part * range.from_stride + range.from_first;
      const std::size_t to = to_ids[i] * range.to_block + part * range.to_stride + range.to_first;
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at / 8), range.bytes / 8,
                  want.begin() + static_cast<std::ptrdiff_t>(to / 8));
    }
  }
  EXPECT_EQ(target.read(), want);
}

TEST_F(BlocksTest, ChecksumsFollowTheWordsAndTheirPlaces) {
  for (const std::size_t block_bytes : {16, 4080, 65552, 300000}) {
    const std::size_t words = block_bytes / 8;
    auto pool = random_words(5 * words);
    std::copy_n(pool.begin(), words, pool.begin() + static_cast<std::ptrdiff_t>(words));
    std::swap(pool[words], pool[words + 1]);  // block 1 is block 0 with two words exchanged
    Device<std::uint64_t> device(pool), sums(4);
    Device<std::uint32_t> ids(std::vector<std::uint32_t>{3, 0, 1, 0});
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    checksum_blocks(bytes(device), ids.get(), 4, block_bytes, sums.get(), stream_);
    std::vector<std::uint64_t> want;
    for (const std::size_t id : {3, 0, 1, 0}) {
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < words; ++i) sum += checksum_word(pool[id * words + i], i);
      want.push_back(sum);
    }
    EXPECT_EQ(sums.read(), want);
    EXPECT_NE(want[1], want[2]);
  }
}

TEST_F(BlocksTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  int devices = 0;
  int peer = 0;
  cudaGetDeviceCount(&devices);
  if (devices > 1) cudaDeviceCanAccessPeer(&peer, 0, 1);
  std::byte* remote = nullptr;
  if (peer != 0) {
    cudaSetDevice(1);
    ASSERT_EQ(cudaMalloc(&remote, kBytes), cudaSuccess);
    cudaMemset(remote, 5, kBytes);
    cudaDeviceSynchronize();
    cudaSetDevice(0);
    cudaDeviceEnablePeerAccess(1, 0);
  }
  Device<std::uint64_t> source(kBytes / 8), target(kBytes / 8), sums(1 << 16);
  for (const std::size_t block_bytes : {std::size_t{16} << 10, std::size_t{64} << 10,
                                        std::size_t{256} << 10, std::size_t{2} << 20}) {
    const auto n = static_cast<std::uint32_t>(kBytes / block_bytes);
    Device<std::uint32_t> to(shuffled(n, 1)), from(shuffled(n, 2));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::printf("  blocks of %5zu KiB, GB/s copied:", block_bytes >> 10);
    const auto measure = [&](const std::byte* pool, int ctas) {
      return kBytes / 1e3 / graph_us(1, [&](int) {
               copy_blocks(bytes(target), pool, to.get(), from.get(), static_cast<int>(n),
                           block_bytes, ctas, stream_);
             });
    };
    for (const int ctas : {16, 32, 132, 264}) {
      std::printf("  %d CTAs %.0f", ctas, measure(bytes(source), ctas));
    }
    if (remote != nullptr) {
      std::printf("; peer:");
      for (const int ctas : {8, 16, 32, 64}) {
        std::printf("  %d CTAs %.0f", ctas, measure(remote, ctas));
      }
    }
    std::printf("; checksums %.0f\n", kBytes / 1e3 / graph_us(1, [&](int) {
                                        checksum_blocks(bytes(source), from.get(),
                                                        static_cast<int>(n), block_bytes,
                                                        sums.get(), stream_);
                                      }));
  }
}

}  // namespace
}  // namespace baton::cuda
