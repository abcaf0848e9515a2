// Other workers' pools, mapped by all ranks of a worker on CPUs, or by none. Threads stand for the
// other ranks' processes.
#include "workers/execute/rank_pulls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "workers/execute/cpu_executor.h"

namespace baton {
namespace {

/// Counts what is asked of one rank.
struct CountedReader final : BlockReader {
  struct Mapping final : MappedPool {
    explicit Mapping(std::atomic<int>& mappings) : count(mappings) { ++count; }
    ~Mapping() override { --count; }
    std::atomic<int>& count;
  };
  Result<std::unique_ptr<MappedPool>> map(const Pull& /*pull*/) override {
    if (cannot_map) return Status(ErrorCode::unavailable, "no such segment");
    return std::unique_ptr<MappedPool>(std::make_unique<Mapping>(mapped));
  }
  Status copy(MappedPool& /*exported*/, const Pull& /*pull*/) override {
    ++copies;
    return {};
  }
  Status place(MappedPool& /*exported*/, const Pull& /*pull*/) override {
    if (cannot_place) return Status(ErrorCode::unavailable, "no addresses are left");
    ++placed;
    return {};
  }
  Result<std::vector<std::uint64_t>> sums(const std::vector<BlockId>& blocks) override {
    return std::vector<std::uint64_t>(blocks.size(), 7);
  }

  std::atomic<int> mapped{0};
  std::atomic<int> placed{0};
  std::atomic<int> copies{0};
  std::atomic<bool> cannot_map{false};
  std::atomic<bool> cannot_place{false};
};

class RankPulls : public testing::Test {
 protected:
  RankPulls() : memory(ExchangeMemory::create(3).value()) {
    for (int rank = 0; rank < 3; ++rank) {
      groups.push_back(std::make_unique<Collective>(memory, rank));
      readers.push_back(std::make_unique<CountedReader>());
    }
    auto first = std::make_unique<CountedReader>();
    own = first.get();
    reader = std::make_unique<RankBlockReader>(
        std::move(first), *groups[0], RankBlockReader::Copies::by_rank_0, [](const RankLost&) {});
    for (int rank = 1; rank < 3; ++rank) {
      threads.emplace_back([this, rank] {
        const auto at = static_cast<std::size_t>(rank);
        EXPECT_THROW(follow_pulls(*readers[at], *groups[at]), RankLost);
      });
    }
    pull.allocation = 5;
    pull.ranks = {{"cpu", "a segment"}};
  }
  ~RankPulls() override {
    Collective::abort(memory, 0);
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<int> mappings() const {
    return {own->mapped, readers[1]->mapped, readers[2]->mapped};
  }

  ExchangeMemory memory;
  std::vector<std::unique_ptr<Collective>> groups;
  std::vector<std::unique_ptr<CountedReader>> readers;  // but rank 0's
  CountedReader* own = nullptr;                         // rank 0's
  std::unique_ptr<RankBlockReader> reader;
  std::vector<std::thread> threads;
  Pull pull;
};

TEST_F(RankPulls, WhatIsCopiedIsMappedByRankZeroAlone) {
  auto mapped = reader->map(pull);
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE(reader->copy(*mapped.value(), pull).ok());
  EXPECT_EQ(own->copies, 1);
  EXPECT_EQ(reader->sums({1, 2}).value().size(), 2U);
  EXPECT_EQ(mappings(), (std::vector{1, 0, 0}));
  mapped.value().reset();
  EXPECT_EQ(mappings(), (std::vector{0, 0, 0}));
}

TEST_F(RankPulls, WhatIsReadInPlaceIsMappedByAllUntilRankZeroLetsItGo) {
  auto mapped = reader->map(pull);
  ASSERT_TRUE(mapped.ok());
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(reader->place(*mapped.value(), pull).ok());
    EXPECT_EQ(mappings(), (std::vector{1, 1, 1})) << "on return, and once";
    EXPECT_EQ(readers[2]->placed, 1);
  }
  EXPECT_TRUE(reader->copy(*mapped.value(), pull).ok());
  EXPECT_EQ(readers[1]->copies, 0);
  mapped.value().reset();
  EXPECT_EQ(mappings(), (std::vector{0, 0, 0}));
}

TEST_F(RankPulls, OneRankThatCannotMapItIsEnough) {
  auto mapped = reader->map(pull);
  ASSERT_TRUE(mapped.ok());
  readers[2]->cannot_map = true;
  const Status refused = reader->place(*mapped.value(), pull);
  EXPECT_EQ(refused.message(), "rank 2: no such segment");
  EXPECT_EQ(mappings(), (std::vector{1, 0, 0})) << "rank 1 could, and has let it go";
  readers[2]->cannot_map = false;
  readers[1]->cannot_place = true;
  EXPECT_EQ(reader->place(*mapped.value(), pull).message(), "rank 1: no addresses are left");
  EXPECT_EQ(mappings(), (std::vector{1, 0, 0}));
  readers[1]->cannot_place = false;
  EXPECT_TRUE(reader->place(*mapped.value(), pull).ok());
  EXPECT_EQ(mappings(), (std::vector{1, 1, 1}));
  mapped.value().reset();
  EXPECT_EQ(mappings(), (std::vector{0, 0, 0}));
}

/// On GPUs, where each rank has a pool of its heads, all have mapped it before any reads it in
/// place.
TEST(RankPullsOnGpus, AMappingIsPlacedByAllOnce) {
  const ExchangeMemory memory = ExchangeMemory::create(2).value();
  Collective first(memory, 0);
  Collective second(memory, 1);
  CountedReader other;
  std::thread follower([&] { EXPECT_THROW(follow_pulls(other, second), RankLost); });
  {
    auto own = std::make_unique<CountedReader>();
    CountedReader& counted = *own;
    RankBlockReader reader(std::move(own), first, RankBlockReader::Copies::by_all,
                           [](const RankLost&) {});
    Pull pull;
    pull.allocation = 5;
    auto mapped = reader.map(pull);
    ASSERT_TRUE(mapped.ok());
    EXPECT_EQ(other.mapped, 1);
    EXPECT_EQ(other.placed, 0);
    other.cannot_place = true;
    EXPECT_EQ(reader.place(*mapped.value(), pull).message(), "rank 1: no addresses are left");
    other.cannot_place = false;
    EXPECT_TRUE(reader.place(*mapped.value(), pull).ok());
    EXPECT_EQ(other.mapped, 1) << "the same mapping";
    EXPECT_EQ(other.placed, 1);
    EXPECT_EQ(counted.mapped, 1);
    EXPECT_TRUE(reader.copy(*mapped.value(), pull).ok());
    EXPECT_EQ(other.copies, 1);
    mapped.value().reset();
    EXPECT_EQ(other.mapped, 0);
  }
  Collective::abort(memory, 0);
  follower.join();
}

/// Nobody answers for the rank. What the reader does then takes until this process has ended.
TEST(RankPullsOfAFrozenRank, AreToldAsItsLoss) {
  struct Told {};
  const ExchangeMemory memory = ExchangeMemory::create(2).value();
  Collective group(memory, 0, {.patience = 100 * kMillisecond});
  std::optional<RankLost> lost;
  RankBlockReader reader(std::make_unique<CountedReader>(), group,
                         RankBlockReader::Copies::by_rank_0, [&](const RankLost& told) {
                           lost = told;
                           throw Told();
                         });
  Pull pull;
  pull.allocation = 5;
  auto mapped = reader.map(pull);
  ASSERT_TRUE(mapped.ok());
  EXPECT_FALSE(lost);
  EXPECT_THROW((void)reader.place(*mapped.value(), pull), Told);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->rank(), 1);
  EXPECT_TRUE(lost->silent());
}

/// To map a pool takes no longer than what a step may take in which nothing gets on, and the
/// scheduler's own patience counts where that is set high.
TEST(RankPullsOnCpus, HaveThePatienceOfSteps) {
  CpuExecutor::Options options;
  options.rank_timeout = 3 * kSecond;
  EXPECT_EQ(options.group_options(0).pull_patience, 3 * kSecond);
  options.rank_timeout = 600 * kSecond;
  EXPECT_EQ(options.group_options(1).pull_patience, kPullPatience);
  EXPECT_EQ(options.group_options(1).collective.patience, 600 * kSecond);
}

}  // namespace
}  // namespace baton
