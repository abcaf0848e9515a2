// Arithmetic of tables by groups, against counting.
#include "ipc/kv_groups.h"

#include <gtest/gtest.h>

#include <set>

namespace baton {
namespace {

std::uint32_t first_by_counting(std::uint32_t window, std::uint32_t position,
                                std::uint32_t per_block) {
  for (std::uint32_t key = 0;; ++key) {
    if (window == 0 || key + window > position) return key / per_block;
  }
}

TEST(TableShape, TheFirstColumnIsTheOneOfTheFirstKeySeen) {
  for (const std::uint32_t per_block : {1U, 3U, 4U, 16U}) {
    for (std::uint32_t window = 0; window < 40; ++window) {
      KvGroups groups;
      groups.windows[0] = window;
      const TableShape shape(per_block, groups);
      for (std::uint32_t position = 0; position < 100; ++position) {
        const std::uint32_t first = first_by_counting(window, position, per_block);
        ASSERT_EQ(shape.first(0, position), first) << window << " " << position;
        // What it sees, its own column and one to grow into are never more than most_live().
        ASSERT_LE(position / per_block + 2 - first, shape.most_live(0));
      }
    }
  }
}

TEST(TableShape, TheLongestSequenceIsTheLastThatFits) {
  for (const std::vector<std::uint32_t>& windows :
       {std::vector<std::uint32_t>{0}, {0, 5}, {0, 0, 9}, {0, 3, 20}}) {
    KvGroups groups;
    groups.count = static_cast<std::uint32_t>(windows.size());
    std::copy(windows.begin(), windows.end(), groups.windows.begin());
    const TableShape shape(4, groups);
    for (std::uint32_t blocks = 0; blocks < 60; ++blocks) {
      const auto longest = static_cast<std::uint32_t>(shape.longest(blocks));
      EXPECT_LE(shape.live_blocks(longest), blocks);
      EXPECT_GT(shape.live_blocks(longest + 1), blocks);
    }
  }
  KvGroups everywhere;
  everywhere.windows[0] = 8;
  EXPECT_EQ(TableShape(4, everywhere).longest(3), 12U);
  EXPECT_GT(TableShape(4, everywhere).longest(4), 1U << 30U);
}

TEST(TableShape, AStartHasWhatTheNextTokenNeeds) {
  KvGroups groups;
  groups.count = 2;
  groups.windows = {0, 6};
  const TableShape shape(4, groups);
  EXPECT_EQ(shape.start_blocks(0, 9), 3U + 3U);
  EXPECT_EQ(shape.start_blocks(0, 100), 25U + 4U);
  // Token 50 sees 45 .. 50: columns 11 and 12; three more are as many as it may ever need.
  EXPECT_EQ(shape.start_blocks(50, 51), 13U + 2U);
  EXPECT_EQ(shape.start_blocks(50, 100), 25U + 4U);
}

TEST(TableShape, Plain) {
  const TableShape shape(16);
  EXPECT_TRUE(shape.plain());
  EXPECT_EQ(shape.start_blocks(0, 33), 3U);
  EXPECT_EQ(shape.longest(5), 80U);
  EXPECT_EQ(shape.first(0, 1000), 0U);
}

}  // namespace
}  // namespace baton
