#include "workers/pool/copy_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace baton::test {
namespace {

using Ends = std::vector<std::size_t>;

TEST(CopyGroups, CutWhereOneTouchesWhatAnotherWrites) {
  CopyGroups groups(10);
  const auto ends = [&](std::vector<CopyOp> copies) { return groups.split(copies); };
  EXPECT_EQ(ends({}), Ends{});
  EXPECT_EQ(ends({{1, 2}, {1, 3}, {4, 5}}), Ends{3}) << "two may read one block";
  EXPECT_EQ(ends({{1, 2}, {2, 3}}), (Ends{1, 2})) << "reads what was written";
  EXPECT_EQ(ends({{1, 2}, {3, 1}}), (Ends{1, 2})) << "writes what is read";
  EXPECT_EQ(ends({{1, 2}, {3, 2}}), (Ends{1, 2})) << "writes it twice";
  EXPECT_EQ(ends({{1, 2}, {3, 4}, {4, 5}, {2, 6}}), (Ends{2, 4})) << "a new group begins clean";
  EXPECT_EQ(ends({{1, 1}, {1, 2}}), (Ends{1, 2}));
}

TEST(CopyGroups, InAnyOrderWithinAGroupTheResultIsThatOfTheList) {
  std::mt19937 random(3);
  CopyGroups groups(12);
  std::size_t cuts = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<CopyOp> copies(random() % 12);
    for (CopyOp& op : copies)
      op = {static_cast<BlockId>(random() % 12), static_cast<BlockId>(random() % 12)};
    std::vector<int> want(12);
    std::iota(want.begin(), want.end(), 0);
    std::vector<int> got = want;
    for (const CopyOp& op : copies) want[op.to] = want[op.from];
    const Ends ends = groups.split(copies);
    cuts += ends.size();
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      std::shuffle(copies.begin() + static_cast<std::ptrdiff_t>(begin),
                   copies.begin() + static_cast<std::ptrdiff_t>(end), random);
      for (; begin < end; ++begin) got[copies[begin].to] = got[copies[begin].from];
    }
    ASSERT_EQ(got, want) << "round " << round;
  }
  EXPECT_GT(cuts, 4000U);
}

}  // namespace
}  // namespace baton::test
