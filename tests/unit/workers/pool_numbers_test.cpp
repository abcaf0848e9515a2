// How tables over several pools on GPUs call their blocks.
#include "workers/pool/pool_numbers.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <stdexcept>
#include <vector>

namespace baton::test {
namespace {

constexpr AllocationId kOwn = 7;

/// Where pools begin: nobody reads there.
const std::byte* at(std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

/// A row whose table begins in other pools.
BatchRow row_of(std::span<const BlockId> blocks, std::span<const TablePart> before) {
  BatchRow row;
  row.blocks = blocks;
  row.before = before;
  return row;
}

TEST(PoolNumbers, ATableNamesThePoolOfEachBlock) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  ASSERT_TRUE(pools.add(8, at(3 << 20), 50).ok());
  ASSERT_TRUE(pools.add(9, at(1 << 19), 60).ok());
  ASSERT_TRUE(pools.add(9, at(1 << 19), 60).ok());
  EXPECT_EQ(pools.offsets(), (std::vector<std::int64_t>{0, 2 << 20, -(1 << 19)}));

  const std::vector<BlockId> blocks = {3, 49, 59, 99, 5, 6};
  // It has come back to the own pool on the way.
  const std::vector<TablePart> before = {{8, 2}, {9, 1}, {kOwn, 1}};
  std::vector<BlockId> ids;
  ASSERT_TRUE(pools.resolve(row_of(blocks, before), ids));
  EXPECT_EQ(ids, (std::vector<BlockId>{1U << 24 | 3, 1U << 24 | 49, 2U << 24 | 59, 99, 5, 6}));

  // A row that looks at the beginning alone.
  ids.clear();
  ASSERT_TRUE(pools.resolve(row_of(std::span(blocks).first(1), before), ids));
  EXPECT_EQ(ids, (std::vector<BlockId>{1U << 24 | 3}));

  ids.clear();
  ASSERT_TRUE(pools.resolve(row_of(blocks, {}), ids));
  EXPECT_EQ(ids, blocks);
}

TEST(PoolNumbers, WhatIsNotThereIsNotNamed) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  const std::vector<BlockId> blocks = {50, 1};
  const std::vector<TablePart> before = {{8, 1}};
  std::vector<BlockId> ids;
  EXPECT_FALSE(pools.resolve(row_of(blocks, before), ids));
  ASSERT_TRUE(pools.add(8, at(3 << 20), 50).ok());
  EXPECT_FALSE(pools.resolve(row_of(blocks, before), ids));  // block 50 of 50
  RunStep step;
  step.rows.push_back(row_of(blocks, before));
  EXPECT_THROW(ResolvedRows().resolve(step, pools), std::logic_error);
}

TEST(PoolNumbers, NumbersAreUsedAgainAndEnd) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  for (AllocationId id = 100; id < 100 + kMostPools - 1; ++id)
    ASSERT_TRUE(pools.add(id, at(id << 20), 10).ok());
  EXPECT_EQ(pools.add(1, at(1 << 22), 10).code(), ErrorCode::unavailable);
  pools.remove(110);
  pools.remove(kOwn);  // stays
  ASSERT_TRUE(pools.add(1, at(5 << 20), 10).ok());
  EXPECT_EQ(pools.offsets()[11], 4 << 20);
  const std::vector<BlockId> blocks = {4, 9};
  const std::vector<TablePart> before = {{1, 1}, {kOwn, 1}};
  std::vector<BlockId> ids;
  ASSERT_TRUE(pools.resolve(row_of(blocks, before), ids));
  EXPECT_EQ(ids, (std::vector<BlockId>{11U << 24 | 4, 9}));
  // The last number still makes a positive 32-bit number.
  EXPECT_LT(std::uint64_t{kMostPools - 1} << kPoolBlockBits | (kMostPoolBlocks - 1), 1ULL << 31);
}

/// Ranks of a worker have their mappings at other addresses, and may have them under other numbers.
TEST(PoolNumbers, OneIsFoundByItsAllocation) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  ASSERT_TRUE(pools.add(8, at(3 << 20), 50).ok());
  EXPECT_EQ(pools.find(8)->number, 1U);
  EXPECT_EQ(pools.find(8)->offset, 2 << 20);
  EXPECT_EQ(pools.find(kOwn)->number, 0U);
  pools.remove(8);
  EXPECT_FALSE(pools.find(8));
}

/// The same pool has two addresses: one for each device that may read it.
TEST(PoolNumbers, AnotherDeviceMaySeeIt) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  ASSERT_TRUE(pools.add(8, at(3 << 20), 50, {2, at(5 << 20)}).ok());
  ASSERT_TRUE(pools.add(9, at(2 << 20), 50).ok());
  EXPECT_EQ(pools.offsets(), (std::vector<std::int64_t>{0, 2 << 20, 1 << 20}));
  const auto held = pools.holders();
  ASSERT_EQ(held.size(), 3U);
  EXPECT_EQ(held[0].device, -1);
  EXPECT_EQ(held[1].device, 2);
  EXPECT_EQ(held[1].offset, 4 << 20);
  EXPECT_EQ(held[2].device, -1);
  pools.remove(8);
  EXPECT_EQ(pools.holders()[1].device, -1);
}

TEST(PoolNumbers, APoolWithTooManyBlocksIsRefused) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  EXPECT_TRUE(pools.add(1, at(1 << 22), kMostPoolBlocks).ok());
  EXPECT_FALSE(pools.add(2, at(1 << 23), kMostPoolBlocks + 1).ok());
  PoolNumbers large(kOwn, at(1 << 20), kMostPoolBlocks + 1);
  EXPECT_FALSE(large.add(1, at(1 << 22), 10).ok());
}

TEST(ResolvedRows, AreTheSameRowsWithOtherTables) {
  PoolNumbers pools(kOwn, at(1 << 20), 100);
  ASSERT_TRUE(pools.add(8, at(3 << 20), 50).ok());
  const std::vector<BlockId> spans = {3, 7};
  const std::vector<BlockId> stays = {4};
  const std::vector<TablePart> before = {{8, 1}};
  RunStep step;
  step.rows.push_back(row_of(spans, before));
  step.rows.back().position = 20;
  step.rows.push_back(row_of(stays, {}));
  ResolvedRows resolved;
  for (int turn = 0; turn < 2; ++turn) {
    const RunStep& got = resolved.resolve(step, pools);
    ASSERT_EQ(got.rows.size(), 2U);
    EXPECT_EQ(got.rows[0].position, 20);
    EXPECT_EQ(std::vector(got.rows[0].blocks.begin(), got.rows[0].blocks.end()),
              (std::vector<BlockId>{1U << 24 | 3, 7}));
    EXPECT_EQ(std::vector(got.rows[1].blocks.begin(), got.rows[1].blocks.end()), stays);
  }
}

}  // namespace
}  // namespace baton::test
