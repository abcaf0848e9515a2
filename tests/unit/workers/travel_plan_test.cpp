// Which device computes which piece of a row whose keys lie on several.
#include "workers/cuda/attention/travel_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "workers/pool/pool_ids.h"

namespace baton::cuda {
namespace {

constexpr int kTokens = 16;

/// Rows of a step over pools 0 (the own one), 1, 2, ...
struct Step {
  std::vector<AttentionRow> rows;
  std::vector<std::int32_t> tables;
  std::vector<int> devices = {0, 1, 2, 1};  // two pools lie on device 1
  int next_row = 0;

  /// Extents of so many blocks in these pools; the last block holds `last` tokens.
  void add(const std::vector<std::pair<int, int>>& extents, int last = kTokens, int n_rows = 1) {
    AttentionRow row;
    row.first_row = next_row;
    row.n_rows = n_rows;
    row.first_block = static_cast<int>(tables.size());
    for (const auto& [pool, blocks] : extents) {
      for (int i = 0; i < blocks; ++i) {
        const auto block = static_cast<std::int32_t>(tables.size() % 1000);
        tables.push_back(pool << kPoolBlockBits | block);
      }
    }
    row.n_blocks = static_cast<int>(tables.size()) - row.first_block;
    row.position = std::int64_t{row.n_blocks - 1} * kTokens + last - n_rows;
    next_row += n_rows;
    rows.push_back(row);
  }

  TravelRules rules() const {
    TravelRules rules;
    rules.device_of_pool = devices;
    rules.devices = 3;
    rules.tokens_per_block = kTokens;
    rules.pieces_at_once = 49;
    rules.first_slot = 264;
    rules.slots = 2048;
    return rules;
  }
  TravelPlan plan(const TravelRules& rules) const {
    TravelPlan plan;
    plan_travel(rows, tables.data(), rules, plan);
    return plan;
  }
  int device_of(const AttentionRow& row, int key) const {
    const auto pool =
        tables[static_cast<std::size_t>(row.first_block + key / kTokens)] >> kPoolBlockBits;
    return devices[static_cast<std::size_t>(pool)];
  }
};

struct Piece {
  int device;
  DecodeItem item;
};

/// The pieces of a row that travels, in their order; what holds of every plan is looked at.
std::vector<Piece> pieces_of(const TravelPlan& plan, const DecodeItem& merge) {
  std::vector<Piece> pieces;
  for (std::size_t d = 0; d < plan.items.size(); ++d) {
    for (const DecodeItem& item : plan.items[d]) {
      if (item.row == merge.row) pieces.push_back({static_cast<int>(d), item});
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.item.piece < b.item.piece; });
  EXPECT_EQ(merge.pieces, static_cast<int>(pieces.size()));
  int end = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const DecodeItem& item = pieces[i].item;
    EXPECT_EQ(item.piece, static_cast<int>(i));
    EXPECT_EQ(item.pieces, 0);
    EXPECT_EQ(item.slot, merge.slot);
    EXPECT_EQ(item.first_block, merge.first_block);
    EXPECT_EQ(item.key_begin, end);
    EXPECT_LT(item.key_begin, item.key_end);
    EXPECT_EQ(item.key_begin % kTokens, 0);
    end = item.key_end;
  }
  EXPECT_EQ(end, merge.key_end);
  return pieces;
}

/// Slots of rows do not meet, and lie where they may.
void check_slots(const TravelPlan& plan, const TravelRules& rules) {
  std::set<int> taken;
  for (const DecodeItem& merge : plan.merges) {
    for (int i = 0; i < merge.pieces; ++i) EXPECT_TRUE(taken.insert(merge.slot + i).second);
  }
  if (taken.empty()) return;
  EXPECT_GE(*taken.begin(), rules.first_slot);
  EXPECT_LT(*taken.rbegin(), rules.first_slot + rules.slots);
}

TEST(TravelPlan, EachDeviceComputesWhatLiesThere) {
  std::mt19937 rng(11);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  for (int turn = 0; turn < 300; ++turn) {
    Step step;
    for (int r = 1 + below(6); r > 0; --r) {
      std::vector<std::pair<int, int>> extents;
      for (int e = 1 + below(8); e > 0; --e) extents.push_back({below(4), 1 + below(200)});
      extents.push_back({0, 1 + below(100)});
      step.add(extents, 1 + below(kTokens));
    }
    TravelRules rules = step.rules();
    rules.slots = 1 + below(400);
    rules.fixed_split = turn % 2 == 0 ? 0 : 64;
    rules.in_place_keys = below(3) == 0 ? below(8000) : 0;
    const TravelPlan plan = step.plan(rules);
    check_slots(plan, rules);
    EXPECT_EQ(plan.merges.size() + plan.others.size(), step.rows.size());
    std::int64_t far = 0;
    for (const DecodeItem& merge : plan.merges) {
      const AttentionRow& row = step.rows[static_cast<std::size_t>(merge.row)];
      EXPECT_EQ(merge.key_end, row.position + 1);
      for (const Piece& piece : pieces_of(plan, merge)) {
        bool one = true;
        for (int key = piece.item.key_begin; key < piece.item.key_end; ++key) {
          one = one && step.device_of(row, key) == step.device_of(row, piece.item.key_begin);
        }
        const int at = one ? step.device_of(row, piece.item.key_begin) : 0;
        EXPECT_EQ(piece.device, at);
        if (rules.fixed_split == 0) {
          EXPECT_TRUE(one);
          continue;
        }
        EXPECT_EQ(piece.item.key_begin, piece.item.piece * rules.fixed_split);
        EXPECT_EQ(piece.item.key_end,
                  std::min(merge.key_end, (piece.item.piece + 1) * rules.fixed_split));
      }
      for (int key = 0; key < merge.key_end; ++key) far += step.device_of(row, key) != 0;
    }
    if (!plan.merges.empty() && plan.others.empty()) {
      EXPECT_GT(far, rules.in_place_keys);
    }
  }
}

/// A reply after a prompt of 130,000 tokens whose chunks of 2,048 were dealt out to two.
TEST(TravelPlan, BothDevicesAreFull) {
  Step step;
  std::vector<std::pair<int, int>> extents;
  for (int chunk = 0; chunk < 64; ++chunk) extents.push_back({chunk % 2, 128});
  extents.push_back({0, 5});
  step.add(extents, 3);
  const TravelPlan plan = step.plan(step.rules());
  ASSERT_EQ(plan.merges.size(), 1U);
  static_cast<void>(pieces_of(plan, plan.merges.front()));
  for (int device = 0; device < 2; ++device) {
    const auto& items = plan.items[static_cast<std::size_t>(device)];
    // Two rounds of 49, mostly; the few tokens of the reply are a piece of their own.
    EXPECT_GE(items.size(), 88U);
    EXPECT_LE(items.size(), 99U);
    EXPECT_LE(items.front().key_end - items.front().key_begin, 1024);
  }
  EXPECT_TRUE(plan.items[2].empty());
}

TEST(TravelPlan, FewKeysElsewhereStayInPlace) {
  Step step;
  step.add({{1, 10}, {0, 10}});
  step.add({{2, 10}, {0, 1}});
  TravelRules rules = step.rules();
  rules.in_place_keys = 320;
  EXPECT_TRUE(step.plan(rules).merges.empty());
  EXPECT_EQ(step.plan(rules).others.size(), 2U);
  rules.in_place_keys = 319;  // of the step, not of a row
  EXPECT_EQ(step.plan(rules).merges.size(), 2U);
}

TEST(TravelPlan, PromptsAndRowsAtHomeDoNotTravel) {
  Step step;
  step.add({{1, 40}, {0, 10}}, kTokens, 20);
  step.add({{0, 40}});
  step.add({{3, 40}, {0, 1}});
  const TravelPlan plan = step.plan(step.rules());
  ASSERT_EQ(plan.merges.size(), 1U);
  EXPECT_EQ(plan.merges.front().row, 21);
  EXPECT_EQ(plan.others.size(), 2U);
}

/// The more keys there are, the longer are the pieces; extents alone may be too many.
TEST(TravelPlan, PiecesFitTheSlots) {
  Step step;
  for (int i = 0; i < 8; ++i) step.add({{1, 4000}, {0, 4000}});
  TravelRules rules = step.rules();
  rules.slots = 100;
  const TravelPlan plan = step.plan(rules);
  check_slots(plan, rules);
  EXPECT_EQ(plan.merges.size(), 8U);

  Step scattered;
  std::vector<std::pair<int, int>> extents(101, {1, 1});
  for (std::size_t i = 0; i < extents.size(); i += 2) extents[i].first = 0;
  scattered.add(extents);
  EXPECT_TRUE(scattered.plan(rules).merges.empty());
  rules.slots = 101;
  EXPECT_EQ(scattered.plan(rules).merges.size(), 1U);
}

/// Nothing of it lies on one other device as a whole piece: it is not worth the way.
TEST(TravelPlan, FixedPiecesOverBordersAreTheOwnDevices) {
  Step step;
  std::vector<std::pair<int, int>> extents(40, {1, 1});
  for (std::size_t i = 0; i < extents.size(); i += 2) extents[i].first = 0;
  step.add(extents);
  TravelRules rules = step.rules();
  rules.fixed_split = 256;
  EXPECT_TRUE(step.plan(rules).merges.empty());
}

}  // namespace
}  // namespace baton::cuda
