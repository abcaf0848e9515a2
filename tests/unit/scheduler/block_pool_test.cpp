// The books of one pool.
#include "scheduler/state/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton {
namespace {

std::vector<BlockId> take(BlockPool& pool, std::uint32_t n) {
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.allocate(n, blocks));
  return blocks;
}

void expect_sums(const BlockPool& pool, std::uint32_t owned, std::uint32_t fenced) {
  EXPECT_EQ(pool.owned_blocks(), owned);
  EXPECT_EQ(pool.fenced_blocks(), fenced);
  EXPECT_EQ(pool.owned_blocks() + pool.fenced_blocks() + pool.available_blocks(), pool.total());
}

TEST(BlockPool, ANewPoolIsFree) {
  const BlockPool pool(5);
  expect_sums(pool, 0, 0);
  EXPECT_EQ(pool.free_blocks(), 5U);
}

TEST(BlockPool, AllocationIsAllOrNothing) {
  BlockPool pool(4);
  const std::vector<BlockId> three = take(pool, 3);
  std::vector<BlockId> more;
  EXPECT_FALSE(pool.allocate(2, more));
  EXPECT_TRUE(more.empty());
  expect_sums(pool, 3, 0);
  EXPECT_TRUE(pool.allocate(1, more));
  EXPECT_EQ(std::count(three.begin(), three.end(), more[0]), 0);
}

TEST(BlockPool, ReleasedWithNothingInFlightIsFreeAtOnce) {
  BlockPool pool(2);
  const BlockId block = take(pool, 1)[0];
  pool.release(block, 3, 3);
  expect_sums(pool, 0, 0);
}

TEST(BlockPool, ReleasedUnderAStepWaitsForIt) {
  BlockPool pool(2);
  const BlockId block = take(pool, 1)[0];
  pool.release(block, /*last_sent=*/4, /*done=*/2);
  expect_sums(pool, 0, 1);
  pool.retire(3);
  expect_sums(pool, 0, 1);
  pool.retire(4);
  expect_sums(pool, 0, 0);
}

TEST(BlockPool, OnlyTheLastReferenceReleases) {
  BlockPool pool(2);
  const BlockId block = take(pool, 1)[0];
  pool.add_reference(block);
  pool.release(block, 0, 0);
  expect_sums(pool, 1, 0);
  EXPECT_EQ(pool.references(block), 1U);
  pool.release(block, 0, 0);
  expect_sums(pool, 0, 0);
}

TEST(BlockPool, APullHoldsItsSourceAndItsTarget) {
  BlockPool pool(3);
  const std::vector<BlockId> blocks = take(pool, 2);
  pool.pin_source(blocks[0]);
  pool.pin_source(blocks[0]);
  pool.pin_target(blocks[1]);
  for (const BlockId block : blocks) pool.release(block, 0, 0);
  expect_sums(pool, 0, 2);
  pool.unpin_target(blocks[1]);
  expect_sums(pool, 0, 1);
  pool.unpin_source(blocks[0]);
  expect_sums(pool, 0, 1);  // a second pull still reads it
  pool.unpin_source(blocks[0]);
  expect_sums(pool, 0, 0);
}

TEST(BlockPool, ACachedBlockThatIsReadIsFoundButGivenToNobody) {
  const std::vector<Token> tokens = {1, 2};
  BlockPool pool(2);
  const BlockId block = take(pool, 1)[0];
  pool.remember(PrefixIndex::kRoot, "", tokens, block);
  pool.release(block, 0, 0);
  pool.pin_source(block);
  expect_sums(pool, 0, 1);
  std::vector<BlockId> none;
  EXPECT_FALSE(pool.allocate(2, none));
  const BlockPool::Match match = pool.match("", tokens, 2, 1);
  ASSERT_EQ(match.blocks, std::vector<BlockId>{block});
  EXPECT_EQ(match.shared, 1U) << "to share it takes nothing from what is free";
  pool.share(block);
  expect_sums(pool, 1, 0);
  pool.release(block, 0, 0);
  expect_sums(pool, 0, 1);
  pool.unpin_source(block);
  expect_sums(pool, 0, 0);
  EXPECT_EQ(pool.cached_blocks(), 1U);
}

TEST(BlockPool, StepAndPullMustBothEnd) {
  for (const bool step_first : {true, false}) {
    BlockPool pool(1);
    const BlockId block = take(pool, 1)[0];
    pool.pin_source(block);
    pool.release(block, 1, 0);
    step_first ? pool.retire(1) : pool.unpin_source(block);
    expect_sums(pool, 0, 1);
    step_first ? pool.unpin_source(block) : pool.retire(1);
    expect_sums(pool, 0, 0);
  }
}

TEST(BlockPool, UnpinningAnOwnedBlockDoesNotFreeIt) {
  BlockPool pool(1);
  const BlockId block = take(pool, 1)[0];
  pool.pin_source(block);
  pool.unpin_source(block);
  expect_sums(pool, 1, 0);
}

TEST(BlockPool, ANewTermFreesAllButWhatAnotherWorkerStillReads) {
  BlockPool pool(4);
  const std::vector<BlockId> blocks = take(pool, 4);
  pool.pin_source(blocks[0]);
  pool.pin_target(blocks[1]);
  pool.release(blocks[2], 9, 1);
  pool.reset();
  expect_sums(pool, 0, 1);
  EXPECT_EQ(pool.retiring_blocks(), 0U);
  pool.unpin_source(blocks[0]);
  expect_sums(pool, 0, 0);
  EXPECT_EQ(take(pool, 4).size(), 4U);
}

TEST(BlockPool, NoBlockIsHandedOutTwice) {
  BlockPool pool(64);
  std::vector<BlockId> all = take(pool, 64);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.front(), 0U);
  EXPECT_EQ(all.back(), 63U);
}

}  // namespace
}  // namespace baton
