// Both parts of a pool on a GPU: copies between them, and pulls out of another process's pool. The
// exporter is this program again, with --exporter.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <numeric>
#include <string>

#include "ipc/process.h"
#include "tests/gpu/device_fixture.h"
#include "workers/pool/cuda_copies.h"
#include "workers/pool/cuda_pool.h"

namespace baton {
namespace {

using cuda::DeviceTest;

constexpr std::uint32_t kExportedBlocks = 12;
constexpr std::uint32_t kExportedHostBlocks = 40;

/// 8 KiB a block, or the 2 MiB of a model with 32 layers of 8 heads.
KvGeometry geometry_of(bool large, std::uint32_t blocks) {
  KvGeometry g;
  g.model_fingerprint = 1;
  g.dtype = KvDtype::bf16;
  g.layers = large ? 32 : 2;
  g.kv_heads = large ? 8 : 1;
  g.head_dim = large ? 128 : 64;
  g.tokens_per_block = 16;
  return size_pool(g, blocks, 0).value();
}

PoolRequest request_of(const std::string& worker, AllocationId allocation) {
  PoolRequest r;
  r.run_dir = "/tmp/baton-gpu-pool-test-" + std::to_string(getpid());
  r.worker = worker;
  r.pid = getpid();
  r.pid_start = pid_start_time(r.pid);
  r.allocation = allocation;
  return r;
}

KvPool host_part(const std::string& worker, bool large, std::uint32_t blocks) {
  auto part = KvPool::create(request_of(worker, 1), geometry_of(large, blocks), PoolPart::host);
  if (!part.ok()) throw std::runtime_error(part.status().message());
  return std::move(part).value();
}

/// Word i of what a block called `name` holds.
std::uint64_t word_of(std::uint64_t name, std::size_t i) {
  return (name + 1) * 0x9E3779B97F4A7C15ULL + i * 0xBF58476D1CE4E5B9ULL;
}

std::vector<std::uint64_t> content(std::uint64_t name, const KvGeometry& g) {
  std::vector<std::uint64_t> words(g.block_bytes / 8);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_of(name, i);
  return words;
}

/// Fills every block of both parts with its own id's content.
void fill(const CudaPool& pool, KvPool* host) {
  const KvGeometry& g = pool.geometry();
  for (BlockId b = 0; b < g.blocks; ++b) {
    cudaMemcpy(pool.data() + g.block_bytes * b, content(b, g).data(), g.block_bytes,
               cudaMemcpyHostToDevice);
  }
  for (BlockId b = 0; host != nullptr && b < host->geometry().blocks; ++b) {
    std::memcpy(host->block(b), content(g.blocks + b, g).data(), g.block_bytes);
  }
  cudaDeviceSynchronize();
}

std::vector<std::uint64_t> read_block(const CudaPool& pool, BlockId block) {
  const KvGeometry& g = pool.geometry();
  std::vector<std::uint64_t> words(g.block_bytes / 8);
  cudaDeviceSynchronize();
  if (block < g.blocks) {
    cudaMemcpy(words.data(), pool.data() + g.block_bytes * block, g.block_bytes,
               cudaMemcpyDeviceToHost);
  } else {
    const std::byte* host = pool.parts().host + g.block_bytes * (block - g.blocks);
    std::memcpy(words.data(), host, g.block_bytes);
  }
  return words;
}

// ---------------------------------------------------------------- copies

class PoolTest : public DeviceTest {};

TEST_F(PoolTest, CopiesBetweenItsPartsAreThoseOfTheList) {
  constexpr std::uint32_t kBlocks = 300;
  constexpr std::uint32_t kHost = 200;
  constexpr std::uint32_t kAll = kBlocks + kHost;
  KvPool host = host_part("w", false, kHost);
  std::byte* const host_bytes = host.data();
  CudaPool pool(geometry_of(false, kBlocks), std::move(host));
  const KvGeometry& g = pool.geometry();
  CudaCopies copies(pool, 132, 2);
  for (BlockId b = 0; b < kAll; ++b) {
    const auto words = content(b, g);
    if (b < kBlocks) {
      cudaMemcpy(pool.data() + g.block_bytes * b, words.data(), g.block_bytes,
                 cudaMemcpyHostToDevice);
    } else {
      std::memcpy(host_bytes + g.block_bytes * (b - kBlocks), words.data(), g.block_bytes);
    }
  }
  cudaDeviceSynchronize();
  std::vector<std::uint64_t> names(kAll);
  std::iota(names.begin(), names.end(), 0U);
  std::mt19937 random(5);
  // Of a few, of more than any buffer began with, and without an end between them: both lanes in
  // turn.
  int lane = 0;
  for (const std::size_t n : {1, 7, 100, 20'000, 40, 9'000}) {
    std::vector<CopyOp> ops(n);
    for (CopyOp& op : ops) {
      op = {static_cast<BlockId>(random() % kAll), static_cast<BlockId>(random() % kAll)};
      names[op.to] = names[op.from];
    }
    if (lane == 2) {
      cudaStreamSynchronize(stream_);
      lane = 0;
    }
    copies.queue(ops, lane++, stream_);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  for (BlockId b = 0; b < kAll; ++b) {
    ASSERT_EQ(read_block(pool, b), content(names[b], g)) << "block " << b;
  }
}

TEST_F(PoolTest, APartIsPageLockedAndARefusalLeavesNoTrace) {
  int read_only = 0;
  int same_address = 0;
  cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, 0);
  cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, 0);
  std::printf("  read-only registration %d, same address %d\n", read_only, same_address);
  KvPool host = host_part("w", false, 64);
  const std::string name = host.handle();
  const auto opened = ShmRegion::open_readonly(name, *kv_pool_bytes(host.geometry()));
  ASSERT_TRUE(opened.ok());
  const cuda::RegisteredMemory own(host.data(), opened.value().size(), false);
  EXPECT_TRUE(static_cast<bool>(own));
  try {
    const cuda::RegisteredMemory theirs(opened.value().data(), opened.value().size(), true);
    EXPECT_NE(theirs.device_data(), nullptr);
    std::printf("  a read-only mapping is page-locked\n");
  } catch (const cuda::CudaError& e) {
    std::printf("  %s\n", e.what());
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// ---------------------------------------------------------------- pulls

/// This program as another process: its pool and what names it.
class Exporter {
 public:
  explicit Exporter(bool large) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execl("/proc/self/exe", "pool_gpu_test", "--exporter", large ? "large" : "small", nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    keep_ = in[1];
    std::FILE* const lines = fdopen(out[0], "r");
    char uuid[64] = "";
    char handle[160] = "";
    char host_handle[160] = "";
    const int n = std::fscanf(lines, "%63s %159s %159s", uuid, handle, host_handle);
    std::fclose(lines);
    if (n != 3) throw std::runtime_error("the exporter does not start");
    pull.ranks = {PoolRank{uuid, handle}};
    pull.exporter_pid = pid_;
    pull.exporter_blocks = kExportedBlocks;
    pull.exporter_host_handle = host_handle;
    pull.exporter_host_blocks = kExportedHostBlocks;
  }
  ~Exporter() { stop(); }
  void stop() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    unlink_region(pull.exporter_host_handle);
    close(keep_);
    pid_ = -1;
  }
  Pull pull;  // without blocks

 private:
  pid_t pid_ = -1;
  int keep_ = -1;
};

int run_exporter(bool large) {
  const cuda::DeviceInfo device = cuda::use_device("0");
  KvPool host = host_part("exporter", large, kExportedHostBlocks);
  for (BlockId b = 0; b < kExportedHostBlocks; ++b) {
    std::memcpy(host.block(b), content(kExportedBlocks + b, host.geometry()).data(),
                host.geometry().block_bytes);
  }
  const CudaPool pool(geometry_of(large, kExportedBlocks), std::move(host));
  fill(pool, nullptr);
  std::printf("%s %s %s\n", device.uuid.c_str(), pool.handle().c_str(),
              pool.host_part().handle().c_str());
  std::fflush(stdout);
  char byte = 0;
  while (read(0, &byte, 1) > 0) continue;
  _exit(0);
}

using Options = CudaBlockReader::Options;
const Options kDirect;
const Options kStaged{.slices_a_pull = 0};
/// Slices that blocks lie across, so few of them a pull that one pull does both.
const Options kSlices{.slice_bytes = 12 << 10, .slices_a_pull = 3};

class PullTest : public DeviceTest, public testing::WithParamInterface<Options> {};
INSTANTIATE_TEST_SUITE_P(Reads, PullTest, testing::Values(kDirect, kStaged, kSlices),
                         [](const auto& test) {
                           return test.param.slices_a_pull == 0        ? "Staged"
                                  : test.param.slice_bytes == 12 << 10 ? "Slices"
                                                                       : "Direct";
                         });

TEST_P(PullTest, ReadsBothPartsOfAnotherProcessesPool) {
  for (const bool large : {false, true}) {
    Exporter exporter(large);
    const CudaPool own(geometry_of(large, 60));
    CudaBlockReader reader(own, cuda::use_device("0"), GetParam());
    auto mapped = reader.map(exporter.pull);
    ASSERT_TRUE(mapped.ok()) << mapped.status().message();
    const auto check = [&](std::vector<BlockId> from, BlockId first) {
      Pull p = exporter.pull;
      p.from = std::move(from);
      for (BlockId i = 0; i < p.from.size(); ++i) p.to.push_back((first + 7 * i) % 60);
      ASSERT_TRUE(reader.copy(*mapped.value(), p).ok());
      for (std::size_t i = 0; i < p.from.size(); ++i) {
        ASSERT_EQ(read_block(own, p.to[i]), content(p.from[i], own.geometry()))
            << "block " << p.from[i] << " to " << p.to[i];
      }
    };
    check({3, 11}, 0);                  // the device part alone
    check({51, 12, 0, 30, 11, 33}, 5);  // both
    std::vector<BlockId> all(kExportedBlocks + kExportedHostBlocks);
    std::iota(all.rbegin(), all.rend(), 0U);
    check(all, 1);
    exporter.stop();
    check({40, 12, 2}, 9);  // a mapping outlives its exporter
    Pull beyond = exporter.pull;
    beyond.from = {kExportedBlocks + kExportedHostBlocks};
    beyond.to = {0};
    EXPECT_FALSE(reader.copy(*mapped.value(), beyond).ok());
  }
}

/// Rows may name its blocks until it is unmapped, also when its process is gone.
TEST_F(PoolTest, BlocksOfAnotherPoolAreReadInPlace) {
  Exporter exporter(true);
  const CudaPool own(geometry_of(true, 5));
  const KvGeometry& g = own.geometry();
  fill(own, nullptr);
  const auto pools = std::make_shared<PoolNumbers>(77, own.data(), g.blocks);
  CudaBlockReader reader(own, cuda::use_device("0"), {.pools = pools});
  auto mapped = reader.map(exporter.pull);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  const std::vector<BlockId> blocks = {3, 11, 4};
  const std::vector<TablePart> before = {{exporter.pull.allocation, 2}};
  BatchRow row;
  row.blocks = blocks;
  row.before = before;
  std::vector<BlockId> ids;
  EXPECT_FALSE(pools->resolve(row, ids));  // mapped for copies alone
  ids.clear();
  ASSERT_TRUE(reader.place(*mapped.value(), exporter.pull).ok());
  ASSERT_TRUE(reader.place(*mapped.value(), exporter.pull).ok());
  ASSERT_TRUE(pools->resolve(row, ids));
  exporter.stop();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t offset = pools->offsets()[ids[i] >> kPoolBlockBits];
    const BlockId block = ids[i] % kMostPoolBlocks;
    std::vector<std::uint64_t> words(g.block_bytes / 8);
    ASSERT_EQ(cudaMemcpy(words.data(), own.data() + offset + g.block_bytes * block, g.block_bytes,
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(words, content(blocks[i], g)) << "entry " << i;
  }
  mapped.value().reset();
  EXPECT_FALSE(pools->resolve(row, ids));
}

/// The GPU that it lies on sees it, too: this process has mapped it once on each of the two.
TEST_F(PoolTest, ItsOwnGpuSeesIt) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  Exporter exporter(true);  // on the first one
  const cuda::DeviceInfo second = cuda::use_device("1");
  {
    const CudaPool own(geometry_of(true, 5));
    const KvGeometry& g = own.geometry();
    const auto pools = std::make_shared<PoolNumbers>(77, own.data(), g.blocks);
    const auto holders = std::make_shared<HolderDevices>(second.ordinal, 1 << 20);
    CudaBlockReader reader(own, second, {.pools = pools, .holders = holders});
    auto mapped = reader.map(exporter.pull);
    ASSERT_TRUE(mapped.ok()) << mapped.status().message();
    ASSERT_TRUE(reader.place(*mapped.value(), exporter.pull).ok());
    exporter.stop();
    const auto held = pools->holders();
    ASSERT_EQ(held.size(), 2U);
    ASSERT_EQ(held[1].device, 0);
    EXPECT_NE(holders->find(0), nullptr);
    EXPECT_EQ(holders->find(1), nullptr);
    for (const std::int64_t offset : {held[1].offset, pools->offsets()[1]}) {
      for (BlockId block = 0; block < kExportedBlocks; ++block) {
        std::vector<std::uint64_t> words(g.block_bytes / 8);
        ASSERT_EQ(cudaMemcpy(words.data(), own.data() + offset + g.block_bytes * block,
                             g.block_bytes, cudaMemcpyDefault),
                  cudaSuccess);
        EXPECT_EQ(words, content(block, g)) << "block " << block;
      }
    }
    mapped.value().reset();
    EXPECT_EQ(pools->holders().size(), 1U);
    // Gone and mapped anew: the context stays.
    Exporter next(true);
    auto again = reader.map(next.pull);
    ASSERT_TRUE(again.ok()) << again.status().message();
    ASSERT_TRUE(reader.place(*again.value(), next.pull).ok());
    EXPECT_EQ(pools->holders().at(1).device, 0);
  }
  cuda::set_device(0);
}

/// Not visible, or its own: it is read over the link, or is near.
TEST_F(PoolTest, AGpuThatIsNotSeenAttendsToNothing) {
  HolderDevices holders(0, 1 << 20);
  EXPECT_EQ(holders.map("GPU-00000000-0000-0000-0000-000000000000", std::string(128, '0')),
            nullptr);
  EXPECT_EQ(holders.map(cuda::use_device("0").uuid, std::string(128, '0')), nullptr);
  EXPECT_EQ(holders.find(0), nullptr);
}

/// What cannot run there is found out before anything is sent there, once.
TEST_F(PoolTest, AGpuThatLoadsNothingIsReadOverTheLink) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const std::string first = cuda::use_device("0").uuid;
  const cuda::DeviceInfo second = cuda::use_device("1");
  int loads = 0;
  HolderDevices holders(second.ordinal, 1 << 20, [&] {
    ++loads;
    throw cuda::CudaError("no room");
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(holders.map(first, std::string(128, '0')), nullptr);
  EXPECT_EQ(loads, 1);
  EXPECT_EQ(holders.find(0), nullptr);
  EXPECT_NO_THROW(holders.look());
  cuda::set_device(0);
}

TEST_F(PoolTest, AMissingHostPartIsNotMapped) {
  Exporter exporter(false);
  const CudaPool own(geometry_of(false, 60));
  CudaBlockReader reader(own, cuda::use_device("0"));
  Pull p = exporter.pull;
  p.exporter_host_handle += "x";
  EXPECT_FALSE(reader.map(p).ok());
  p = exporter.pull;
  p.exporter_host_blocks += 1;
  EXPECT_FALSE(reader.map(p).ok());
  p.exporter_host_blocks = 0;
  auto mapped = reader.map(p);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  p.from = {kExportedBlocks};
  p.to = {0};
  EXPECT_FALSE(reader.copy(*mapped.value(), p).ok());
}

// ---------------------------------------------------------------- how fast

/// Milliseconds that f() takes on the host's clock.
template <typename F>
double ms_of(F&& f) {
  const TimeNs begin = now_ns();
  f();
  return 1e-6 * static_cast<double>(now_ns() - begin);
}

TEST_F(PoolTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  const char* wanted = std::getenv("BATON_GPU_BENCH_BLOCKS");
  const auto n = static_cast<std::uint32_t>(wanted != nullptr ? std::atoi(wanted) : 512);
  std::optional<KvPool> host;
  const double create_ms = ms_of([&] { host = host_part("bench", true, n); });
  const std::string name = host->handle();
  const std::size_t bytes = *kv_pool_bytes(host->geometry());
  std::optional<CudaPool> pool;
  const double lock_ms = ms_of([&] { pool.emplace(geometry_of(true, n), std::move(*host)); });
  std::printf(
      "  host part of %u blocks of 2 MiB: created in %.0f ms, page-locked (with cudaMalloc) in "
      "%.0f ms\n",
      n, create_ms, lock_ms);
  CudaCopies copies(*pool, 132, 1);
  std::printf("  host_block_us %.1f\n", static_cast<double>(copies.measure_host_block_us(stream_)));
  std::fflush(stdout);

  const std::uint32_t some = std::min<std::uint32_t>(n, 128);
  std::vector<std::uint32_t> device_ids(some), host_ids(some);
  for (std::uint32_t i = 0; i < some; ++i) {
    device_ids[i] = static_cast<std::uint32_t>((std::uint64_t{i} * 7919) % n);
    host_ids[i] = n + static_cast<std::uint32_t>((std::uint64_t{i} * 104'729) % n);
  }
  const cuda::Device<std::uint32_t> on_device(device_ids), on_host(host_ids);
  const auto gb_s = [](std::size_t blocks, double us) {
    return static_cast<double>(blocks * (2 << 20)) / 1e3 / us;
  };
  for (const std::uint32_t count : {1U, 8U, some}) {
    std::printf("  %3u blocks, GB/s by the kernel, out/in:", count);
    for (const int ctas : {8, 16, 32, 64, 132, 264}) {
      const auto time = [&](const std::uint32_t* to, const std::uint32_t* from) {
        return graph_us(1, [&](int) {
          cuda::copy_blocks(pool->parts(), pool->parts(), to, from, static_cast<int>(count),
                            2 << 20, ctas, stream_);
        });
      };
      std::printf("  %d CTAs %.1f/%.1f", ctas, gb_s(count, time(on_host.get(), on_device.get())),
                  gb_s(count, time(on_device.get(), on_host.get())));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  // The copy engines, for comparison: one call for all blocks.
  const auto batch_us = [&](bool out, std::uint32_t count) {
    std::vector<void*> to(count);
    std::vector<const void*> from(count);
    std::vector<std::size_t> sizes(count, 2 << 20);
    const cuda::PoolParts parts = pool->parts();
    for (std::uint32_t i = 0; i < count; ++i) {
      std::byte* const d = parts.device + std::size_t{device_ids[i]} * (2 << 20);
      std::byte* const h = parts.host + std::size_t{host_ids[i] - n} * (2 << 20);
      to[i] = out ? h : d;
      from[i] = out ? d : h;
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    double best = 1e12;
    for (int round = 0; round < 5; ++round) {
      best =
          std::min(best, 1e3 * ms_of([&] {
                           EXPECT_EQ(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(),
                                                          count, &attributes, &first, 1, stream_),
                                     cudaSuccess);
                           cudaStreamSynchronize(stream_);
                         }));
    }
    return best;
  };
  for (const std::uint32_t count : {1U, 8U, some}) {
    std::printf("  %3u blocks, GB/s by cudaMemcpyBatchAsync with its launch, out/in: %.1f/%.1f\n",
                count, gb_s(count, batch_us(true, count)), gb_s(count, batch_us(false, count)));
  }
  std::fflush(stdout);

  // As an importer sees it: the same part mapped again, read-only.
  const auto opened = ShmRegion::open_readonly(name, bytes);
  ASSERT_TRUE(opened.ok());
  try {
    std::optional<cuda::RegisteredMemory> seen;
    const double register_ms =
        ms_of([&] { seen.emplace(opened.value().data(), opened.value().size(), true); });
    std::printf("  an importer page-locks it in %.0f ms\n", register_ms);
  } catch (const cuda::CudaError& e) {
    std::printf("  an importer cannot page-lock it: %s\n", e.what());
  }
  Pull p;
  p.ranks = {PoolRank{cuda::use_device("0").uuid, pool->handle()}};
  for (const bool staged : {false, true}) {
    Exporter exporter(true);
    CudaBlockReader reader(*pool, cuda::use_device("0"), staged ? kStaged : kDirect);
    auto mapped = reader.map(exporter.pull);
    ASSERT_TRUE(mapped.ok());
    Pull pull = exporter.pull;
    for (std::uint32_t i = 0; i < kExportedHostBlocks; ++i) {
      pull.from.push_back(kExportedBlocks + i);
      pull.to.push_back(device_ids[i]);
    }
    std::vector<double> times;
    for (int round = 0; round < 4; ++round) {
      times.push_back(ms_of([&] { ASSERT_TRUE(reader.copy(*mapped.value(), pull).ok()); }));
    }
    std::printf(
        "  pull of %u blocks out of another's host part, %s: first %.2f ms, then %.2f ms, %.1f "
        "GB/s\n",
        kExportedHostBlocks, staged ? "staged" : "as it can", times[0], times[3],
        gb_s(kExportedHostBlocks, 1e3 * times[3]));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--exporter") {
    return baton::run_exporter(std::string(argv[2]) == "large");
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
