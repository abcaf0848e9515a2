// How the streamed attention kernel's runs are cut: every key of every row once, runs of about
// equal length, slots of their own for rows that are shared.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "workers/cuda/attention/attention_decode_runs.h"

namespace baton::cuda {
namespace {

std::vector<DecodeItem> rows_of(const std::vector<std::pair<int, int>>& keys) {
  std::vector<DecodeItem> rows;
  int block = 0;
  for (const auto& [begin, end] : keys) {
    rows.push_back({static_cast<int>(rows.size()), block, begin, end, 0, 1, 0, end - 1});
    block += (end + 15) / 16;
  }
  return rows;
}

int tiles(const DecodeItem& item) { return (item.key_end + 15) / 16 - item.key_begin / 16; }

/// Checks the plan; returns the length of the longest run in tiles.
int check(const std::vector<DecodeItem>& rows, int runs, const DecodePlan& plan) {
  EXPECT_EQ(plan.counts.size(), static_cast<std::size_t>(runs) + 1);
  EXPECT_EQ(plan.counts.front(), 0);
  EXPECT_EQ(plan.counts.back(), static_cast<std::int32_t>(plan.items.size()));
  EXPECT_TRUE(std::is_sorted(plan.counts.begin(), plan.counts.end()));
  EXPECT_LE(plan.items.size(), rows.size() + static_cast<std::size_t>(runs) - 1);
  int longest = 0;
  for (std::size_t r = 0; r + 1 < plan.counts.size(); ++r) {
    int length = 0;
    for (int i = plan.counts[r]; i < plan.counts[r + 1]; ++i) {
      length += tiles(plan.items[static_cast<std::size_t>(i)]);
    }
    longest = std::max(longest, length);
  }
  std::size_t at = 0;
  int next_slot = 0;
  for (const DecodeItem& row : rows) {
    int key = row.key_begin;
    const int pieces = plan.items.at(at).pieces;
    for (int piece = 0; piece < pieces; ++piece, ++at) {
      const DecodeItem& item = plan.items.at(at);
      EXPECT_EQ(item.row, row.row);
      EXPECT_EQ(item.first_block, row.first_block);
      EXPECT_EQ(item.fresh, row.fresh);
      EXPECT_EQ(item.piece, piece);
      EXPECT_EQ(item.pieces, pieces);
      EXPECT_EQ(item.key_begin, key);
      EXPECT_GT(item.key_end, item.key_begin);
      EXPECT_TRUE(item.key_end == row.key_end || item.key_end % 16 == 0);
      if (pieces > 1) {
        EXPECT_EQ(item.slot, next_slot);
      }
      key = item.key_end;
    }
    EXPECT_EQ(key, row.key_end);
    if (pieces > 1) next_slot += pieces;
  }
  EXPECT_EQ(at, plan.items.size());
  EXPECT_LT(next_slot, 2 * runs);
  return longest;
}

TEST(AttentionRuns, NoRows) {
  DecodePlan plan;
  plan_runs({}, 7, plan);
  EXPECT_TRUE(plan.items.empty());
  EXPECT_EQ(plan.counts, std::vector<std::int32_t>(8, 0));
}

TEST(AttentionRuns, EqualRowsAreNotCutWhereTheirEndsAreNear) {
  const auto rows = rows_of(std::vector<std::pair<int, int>>(128, {0, 512}));
  DecodePlan plan;
  plan_runs(rows, 66, plan);
  EXPECT_EQ(check(rows, 66, plan), 64);  // 62.06 would be even
  EXPECT_EQ(plan.items.size(), 128U);
}

TEST(AttentionRuns, ALongRowIsSharedByFewEnoughForOneToMerge) {
  auto keys = std::vector<std::pair<int, int>>(15, {0, 100});
  keys.emplace_back(0, 100'000);
  const auto rows = rows_of(keys);
  DecodePlan plan;
  plan_runs(rows, 528, plan);
  check(rows, 528, plan);
  EXPECT_LE(plan.items.back().pieces, 66);
  EXPECT_GE(plan.items.back().pieces, 60);
}

TEST(AttentionRuns, FewKeysMakeFewRuns) {
  const auto rows = rows_of(std::vector<std::pair<int, int>>(20, {0, 40}));
  DecodePlan plan;
  plan_runs(rows, 66, plan);
  EXPECT_LE(check(rows, 66, plan), 9);
  EXPECT_EQ(std::count(plan.counts.begin(), plan.counts.end(), plan.counts.back()), 66 + 1 - 7);
}

TEST(AttentionRuns, AnyRows) {
  std::mt19937 rng(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::pair<int, int>> keys(1 + rng() % 300);
    const unsigned most = 1U << (rng() % 12 + 1);
    for (auto& [begin, end] : keys) {
      end = 1 + static_cast<int>(rng() % most);
      begin = round % 2 == 0 ? 0 : static_cast<int>(rng() % static_cast<unsigned>(end));
    }
    const auto rows = rows_of(keys);
    int all = 0;
    int widest = 0;
    for (const DecodeItem& row : rows) {
      all += tiles(row);
      widest = std::max(widest, tiles(row));
    }
    for (const int runs : {1, 13, 66, 528}) {
      DecodePlan plan;
      plan_runs(rows, runs, plan);
      const int longest = check(rows, runs, plan);
      const int even = std::max({(all + runs - 1) / runs, 15, 2 * (widest / 64)});
      EXPECT_LE(longest, even + even / 24) << "round " << round << ", " << runs << " runs";
    }
  }
}

}  // namespace
}  // namespace baton::cuda
