// A sequence whose first tokens lie in other workers' pools: three executors in one process.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "workers/execute/fake_model.h"
#include "workers/pool/step_progress.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kPerBlock = 4;

/// A fake model with its pool, and the pools that it has mapped.
struct FakeWorker {
  FakeWorker(const std::string& name, AllocationId id, std::uint32_t pool_blocks)
      : allocation(id), blocks(pool_blocks), model("", kPerBlock) {
    std::atomic<int> percent{0};
    EXPECT_TRUE(model.load(percent).ok());
    PoolRequest request;
    request.run_dir = "/tmp/baton-window-test-" + std::to_string(getpid());
    request.worker = name;
    request.pid = getpid();
    request.pid_start = pid_start_time(getpid());
    request.allocation = id;
    request.pool_blocks = pool_blocks;
    request.tells_layers = true;
    auto pool = model.allocate(request);
    EXPECT_TRUE(pool.ok());
    ranks = pool.value().ranks;
    progress = pool.value().progress_handle;
    reader = model.block_reader();
  }

  std::unique_ptr<MappedPool> map(const FakeWorker& other) {
    Pull pull;
    pull.allocation = other.allocation;
    pull.ranks = other.ranks;
    pull.exporter_blocks = other.blocks;
    auto mapped = reader->map(pull);
    EXPECT_TRUE(mapped.ok());
    EXPECT_TRUE(reader->place(*mapped.value(), pull).ok());
    EXPECT_TRUE(reader->place(*mapped.value(), pull).ok());  // once more: nothing happens
    return std::move(mapped).value();
  }

  /// Computes tokens [begin, end) of `tokens`.
  Token run(const std::vector<Token>& tokens, std::size_t begin, std::size_t end,
            const std::vector<BlockId>& table, const std::vector<TablePart>& before) {
    RunStep step;
    BatchRow& row = step.rows.emplace_back();
    row.tokens = std::span<const Token>(tokens).subspan(begin, end - begin);
    row.position = static_cast<std::int64_t>(begin);
    row.blocks = table;
    row.before = before;
    row.logits = LogitsWanted::last;
    row.sampling = &sampling;
    step.reads_in_place = !before.empty();
    StepOutput output;
    output.tokens.assign(1, kNoToken);
    model.launch(step);
    model.collect(output);
    return output.tokens[0];
  }

  AllocationId allocation;
  std::uint32_t blocks;
  FakeModel model;
  std::vector<PoolRank> ranks;
  std::string progress;
  std::unique_ptr<BlockReader> reader;
  SamplingParams sampling;
};

std::vector<Token> some_tokens(std::size_t n) {
  std::vector<Token> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<Token>(i * 7 % 1000);
  return tokens;
}

TEST(PoolWindow, ASequenceGoesOnInOtherPoolsWhereItsTokensStay) {
  FakeWorker a("a", 1, 5);
  FakeWorker b("b", 2, 9);
  FakeWorker c("c", 3, 3);
  const auto a_in_b = b.map(a);
  const auto a_in_c = c.map(a);
  const auto b_in_c = c.map(b);
  const auto b_in_a = a.map(b);
  const auto c_in_a = a.map(c);
  const std::vector<Token> tokens = some_tokens(30);
  const auto next = [&](std::size_t n) {
    return FakeModel::next_token(std::span(tokens).first(n), 32'000);
  };
  // 8 tokens in a, 8 in b, 8 in c, and the last ones in a again.
  EXPECT_EQ(a.run(tokens, 0, 8, {4, 1}, {}), next(8));
  EXPECT_EQ(b.run(tokens, 8, 12, {4, 1, 8}, {{1, 2}}), next(12));
  EXPECT_EQ(b.run(tokens, 12, 16, {4, 1, 8, 0}, {{1, 2}}), next(16));
  EXPECT_EQ(c.run(tokens, 16, 24, {4, 1, 8, 0, 2, 0}, {{1, 2}, {2, 2}}), next(24));
  EXPECT_EQ(a.run(tokens, 24, 30, {4, 1, 8, 0, 2, 0, 3, 2}, {{1, 2}, {2, 2}, {3, 2}}), next(30));
  // Beside it, what lies in one pool is computed as ever.
  EXPECT_EQ(a.run(tokens, 0, 4, {0}, {}), next(4));
}

TEST(PoolWindow, WhatWasUnmappedIsNotNamed) {
  FakeWorker a("a", 11, 5);
  FakeWorker b("b", 12, 9);
  const std::vector<Token> tokens = some_tokens(9);
  a.run(tokens, 0, 8, {0, 1}, {});
  auto mapped = b.map(a);
  EXPECT_NO_THROW(b.run(tokens, 8, 9, {0, 1, 0}, {{11, 2}}));
  EXPECT_ANY_THROW(b.run(tokens, 8, 9, {5, 1, 0}, {{11, 2}}));  // block 5 of 5
  mapped.reset();
  EXPECT_ANY_THROW(b.run(tokens, 8, 9, {0, 1, 0}, {{11, 2}}));
  mapped = b.map(a);
  EXPECT_EQ(b.run(tokens, 8, 9, {0, 1, 0}, {{11, 2}}), FakeModel::next_token(tokens, 32'000));
}

TEST(PoolWindow, WhatAStepLacksIsToldOthers) {
  FakeWorker a("a", 21, 5);
  a.model.begin_term(4);
  a.model.lacks_rows(4, 2);
  PeerProgress others;
  const TimeNs began = now_ns();
  EXPECT_NE(others.wait(a.progress, 4, 2, 1), "");
  EXPECT_LT(now_ns() - began, kSecond);
}

/// Blocks that are no whole pages, pools of all sizes that come and go.
TEST(PoolWindow, PlacesAreFoundAgain) {
  constexpr std::uint64_t kBlock = 4096 + 512;
  const auto region = [](std::size_t blocks) {
    const std::string name =
        "baton-window-" + std::to_string(getpid()) + "-" + std::to_string(blocks);
    auto made = ShmRegion::create(name, blocks * kBlock);
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  };
  ShmRegion own = region(10);
  PoolWindow window(1, std::span(own.writable_data(), own.size()), kBlock);
  std::vector<ShmRegion> others;
  for (std::size_t i = 0; i < 6; ++i) {
    others.push_back(region(20 + i));
    std::memset(others.back().writable_data(), static_cast<int>(i + 1), others.back().size());
  }
  const auto place = [&](std::size_t i) {
    return window.add(100 + i, std::span(others[i].data(), others[i].size())).ok();
  };
  const auto at = [&](std::size_t i) {
    const std::vector<BlockId> table = {19};
    const std::vector<TablePart> before = {{100 + i, 1}};
    BatchRow row;
    row.blocks = table;
    row.before = before;
    std::vector<BlockId> ids;
    EXPECT_TRUE(window.resolve(row, ids));
    return static_cast<int>(window.base()[ids.at(0) * kBlock + 7]);
  };
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < others.size(); ++i) ASSERT_TRUE(place(i));
    for (std::size_t i = 0; i < others.size(); ++i) EXPECT_EQ(at(i), static_cast<int>(i + 1));
    for (const std::size_t i : {1U, 4U, 2U}) window.remove(100 + i);
    EXPECT_EQ(at(3), 4);
    ASSERT_TRUE(place(4));
    EXPECT_EQ(at(4), 5);
    for (std::size_t i = 0; i < others.size(); ++i) window.remove(100 + i);
  }
  own.writable_data()[5] = std::byte{77};
  EXPECT_EQ(static_cast<int>(window.base()[5]), 77);
}

/// Private memory cannot be mapped a second time; some kernels find that out when they have
/// already unmapped the place.
TEST(PoolWindow, APoolThatCannotBeMappedLeavesNoHole) {
  constexpr std::uint64_t kBlock = 4096;
  auto own = ShmRegion::create("baton-window-hole-" + std::to_string(getpid()), 4 * kBlock);
  ASSERT_TRUE(own.ok());
  PoolWindow window(1, std::span(own.value().writable_data(), own.value().size()), kBlock);
  void* const memory =
      mmap(nullptr, 8 * kBlock, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(window.add(2, std::span(static_cast<const std::byte*>(memory), 8 * kBlock)).ok());
  ASSERT_NE(window.base(), nullptr);
  EXPECT_EQ(msync(window.base(), window.ids() * kBlock, MS_ASYNC), 0) << "ENOMEM: there is a hole";
  munmap(memory, 8 * kBlock);
}

}  // namespace
}  // namespace baton::test
