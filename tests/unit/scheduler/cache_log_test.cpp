// What routers are told of a pool, against books of the test's own: at every moment the events so
// far, replayed by somebody who knows nothing else, give the contents that blocks hold.
#include "scheduler/prefix/cache_log.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/messages.h"
#include "scheduler/admin/kv_events.h"
#include "scheduler/prefix/prefix_index.h"
#include "scheduler/state/block_pool.h"

namespace baton {
namespace {

using Content = std::pair<std::string, std::vector<Token>>;  // salt, all tokens from the first on

/// A router's books: by hash alone.
struct Reader {
  std::map<std::pair<ContentHash, bool>, int> held;
  std::size_t cleared = 0;

  void hear(const std::vector<CacheEvent>& events) {
    for (const CacheEvent& event : events) {
      switch (event.what) {
        case CacheEvent::What::stored:
          EXPECT_EQ(held.count({event.hash, event.host}), 0U) << "stored twice";
          held[{event.hash, event.host}] = 1;
          break;
        case CacheEvent::What::removed:
          EXPECT_EQ(held.erase({event.hash, event.host}), 1U) << "removed, and not there";
          break;
        case CacheEvent::What::cleared:
          ++cleared;
          held.clear();
      }
    }
  }
  std::set<std::pair<ContentHash, bool>> all() const {
    std::set<std::pair<ContentHash, bool>> set;
    for (const auto& [key, one] : held) set.insert(key);
    return set;
  }
};

ContentHash hash_of(const Content& content, std::size_t per_block) {
  std::optional<ContentHash> parent;
  for (std::size_t i = 0; i < content.second.size(); i += per_block) {
    parent = hash_content(parent, content.first,
                          std::span(content.second).subspan(i, per_block));
  }
  return *parent;
}

TEST(CacheLog, AContentHasOneNameWhereverItIs) {
  const std::vector<Token> first{1, 2}, second{3, 4};
  PrefixIndex a, b;
  CacheLog log_a, log_b;
  a.tell(&log_a);
  b.tell(&log_b);
  (void)b.insert(PrefixIndex::kRoot, "", second, 9);  // other numbers of nodes
  const auto node_a = a.insert(PrefixIndex::kRoot, "", first, 0);
  const auto node_b = b.insert(PrefixIndex::kRoot, "", first, 1);
  EXPECT_NE(node_a, node_b);
  EXPECT_EQ(log_a.hash_of(node_a), log_b.hash_of(node_b));
  const auto deep_a = a.insert(node_a, "", second, 2);
  EXPECT_NE(log_a.hash_of(deep_a), log_b.hash_of(b.insert(PrefixIndex::kRoot, "x", second, 3)));
  EXPECT_NE(log_a.hash_of(node_a), log_b.hash_of(b.insert(PrefixIndex::kRoot, "x", first, 4)));
  EXPECT_EQ(log_a.hash_of(deep_a), log_b.hash_of(b.insert(node_b, "", second, 5)));
}

TEST(CacheLog, WhatCannotBeFoundIsNotTold) {
  PrefixIndex index;
  CacheLog log;
  index.tell(&log);
  const std::vector<Token> first{1, 2}, second{3, 4};
  const auto node = index.insert(PrefixIndex::kRoot, "", first, 0);
  index.forget(0);
  (void)log.take();
  (void)index.insert(node, "", second, 1);
  index.forget(1);
  EXPECT_TRUE(log.empty());
}

/// Its chain's beginning was forgotten and computed again: the block is found behind that now.
TEST(CacheLog, ABlockThatIsEnteredAgainIsThereOnce) {
  PrefixIndex index;
  CacheLog log;
  index.tell(&log);
  Reader reader;
  const std::vector<Token> first{1, 2}, second{3, 4};
  const auto before = index.insert(PrefixIndex::kRoot, "", first, 0);
  (void)index.insert(before, "", second, 1);
  index.forget(0);
  const auto again = index.insert(PrefixIndex::kRoot, "", first, 2);
  (void)index.insert(again, "", second, 1);
  EXPECT_EQ(index.size(), 2U);
  reader.hear(log.take());
  EXPECT_EQ(reader.all().size(), 2U);
  index.forget(1);
  reader.hear(log.take());
  EXPECT_EQ(reader.all().size(), 1U);
}

TEST(CacheLog, TooMuchInATurnIsTakenBack) {
  PrefixIndex index;
  CacheLog log;
  index.tell(&log);
  Reader reader;
  for (Token i = 0; i < static_cast<Token>(CacheLog::kMostEvents) + 10; ++i) {
    const std::vector<Token> tokens{i, i};
    (void)index.insert(PrefixIndex::kRoot, "", tokens, static_cast<BlockId>(i));
  }
  const std::vector<CacheEvent> events = log.take();
  EXPECT_LT(events.size(), 20U);
  reader.hear(events);
  for (BlockId i = 0; i < CacheLog::kMostEvents + 10; ++i) index.forget(i);
  reader.hear(log.take());
  EXPECT_TRUE(reader.all().empty());
}

/// Random chains, copies to the host part and back, evictions in any order, the end of the pool.
TEST(CacheLog, ReplayedEventsGiveWhatIsCached) {
  constexpr std::size_t kPerBlock = 2;
  constexpr BlockId kBlocks = 24, kHosts = 12;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    PrefixIndex index;
    CacheLog log;
    index.tell(&log);
    Reader reader;
    // The test's own books: what each block holds; a block whose content could not be found when it
    // came (its chain had been cut) is told to nobody.
    struct Held {
      Content content;
      PrefixIndex::Node node;
      bool told;
    };
    std::map<BlockId, Held> blocks;
    const auto free_block = [&](BlockId from, BlockId to) {
      for (BlockId block = from; block < to; ++block) {
        if (blocks.count(block) == 0) return block;
      }
      return kNoBlock;
    };
    std::vector<std::pair<PrefixIndex::Node, Content>> ends{{PrefixIndex::kRoot, {"", {}}},
                                                            {PrefixIndex::kRoot, {"s", {}}}};
    for (int step = 0; step < 1500; ++step) {
      const std::uint32_t what = below(100);
      if (what < 45) {  // a chain goes on, perhaps one whose end has been forgotten
        const auto& [parent, content] = ends[below(static_cast<std::uint32_t>(ends.size()))];
        const BlockId block = free_block(0, kBlocks);
        if (block == kNoBlock || content.second.size() > 8) continue;
        Content longer = content;
        const std::vector<Token> tokens{static_cast<Token>(below(2)), static_cast<Token>(below(2))};
        longer.second.insert(longer.second.end(), tokens.begin(), tokens.end());
        const auto node = index.insert(parent, longer.first, tokens, block);
        if (index.holds(block)) {
          bool told = parent == PrefixIndex::kRoot;
          for (const auto& [other, held] : blocks) {
            told = told || (held.node == parent && held.told) || (held.node == node && held.told);
          }
          blocks[block] = {longer, node, told};
        }
        ends.emplace_back(node, longer);
        if (ends.size() > 40) ends.erase(ends.begin() + 2);
      } else if (what < 60 && !blocks.empty()) {  // to the host part
        const auto at = std::next(blocks.begin(), below(static_cast<std::uint32_t>(blocks.size())));
        const BlockId host = free_block(kBlocks, kBlocks + kHosts);
        const auto* entry = index.entry(at->first);
        if (at->first >= kBlocks || host == kNoBlock || entry->host != kNoBlock) continue;
        index.copy_to_host(at->first, host);
        blocks[host] = at->second;
      } else if (what < 70 && !blocks.empty()) {  // and back
        const auto at = std::next(blocks.begin(), below(static_cast<std::uint32_t>(blocks.size())));
        const BlockId block = free_block(0, kBlocks);
        const auto* entry = index.entry(at->first);
        if (at->first < kBlocks || block == kNoBlock || entry->block != kNoBlock) continue;
        index.copy_from_host(at->first, block);
        blocks[block] = at->second;
      } else if (what < 99 && !blocks.empty()) {
        const auto at = std::next(blocks.begin(), below(static_cast<std::uint32_t>(blocks.size())));
        index.forget(at->first);
        blocks.erase(at);
      } else if (what == 99 && below(4) == 0) {
        index.clear();
        blocks.clear();
        ends.resize(2);
      }
      if (below(3) == 0) reader.hear(log.take());
    }
    reader.hear(log.take());
    std::set<std::pair<ContentHash, bool>> expected;
    for (const auto& [block, held] : blocks) {
      if (held.told) expected.insert({hash_of(held.content, kPerBlock), block >= kBlocks});
    }
    EXPECT_EQ(reader.all(), expected) << "seed " << seed;
    EXPECT_GE(reader.cleared, 1U);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(CacheLog, APoolTellsOfWhatItForgetsForOthers) {
  BlockPool pool(4);
  CacheLog log;
  pool.tell(&log);
  Reader reader;
  const std::vector<Token> first{1, 2}, second{3, 4};
  std::vector<BlockId> mine;
  ASSERT_TRUE(pool.allocate(2, mine));
  const auto node = pool.remember(PrefixIndex::kRoot, "", first, mine[0]);
  (void)pool.remember(node, "", second, mine[1]);
  for (auto it = mine.rbegin(); it != mine.rend(); ++it) pool.release(*it, 0, 0);
  reader.hear(log.take());
  EXPECT_EQ(reader.all().size(), 2U);
  std::vector<BlockId> others;
  ASSERT_TRUE(pool.allocate(3, others));
  reader.hear(log.take());
  EXPECT_EQ(reader.all().size(), 1U);
  pool.reset();
  reader.hear(log.take());
  EXPECT_TRUE(reader.all().empty());
  EXPECT_EQ(reader.cleared, 2U);
}

TEST(KvEvents, BytesAreThoseOfVllm) {
  const std::vector<CacheEvent> events{
      {CacheEvent::What::stored, false, 5, std::nullopt, {1, 300}},
      {CacheEvent::What::stored, false, 6, 5, {70000, -1}},
      {CacheEvent::What::removed, true, 0x1122334455667788U, std::nullopt, {}},
      {}};
  const auto hex = [](const std::string& bytes) {
    std::string out;
    for (const char c : bytes) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += two;
    }
    return out;
  };
  // By msgspec.msgpack.encode([2.5, [["BlockStored", [5, 6], None, [1, 300, 70000, -1], 2, None,
  // "GPU", None], ["BlockRemoved", [1234605616436508552], "CPU"], ["AllBlocksCleared"]], 3]), but
  // that -1 takes nine bytes.
  EXPECT_EQ(hex(encode_kv_events(2.5, events, {true, 2, 3})),
            "93" "cb4004000000000000" "93"
            "98" "ab426c6f636b53746f726564" "920506" "c0"
            "9401cd012cce00011170d3ffffffffffffffff" "02" "c0" "a3475055" "c0"
            "93" "ac426c6f636b52656d6f766564" "91cf1122334455667788" "a3435055"
            "91" "b0416c6c426c6f636b73436c6561726564"
            "03");
  EXPECT_EQ(hex(encode_kv_events(2.5, std::span(events).subspan(2), {false, 2, 0})),
            "93" "cb4004000000000000" "92"
            "83" "a474797065" "ac426c6f636b52656d6f766564" "ac626c6f636b5f686173686573"
            "91cf1122334455667788" "a66d656469756d" "a3435055"
            "81" "a474797065" "b0416c6c426c6f636b73436c6561726564"
            "00");
}

}  // namespace
}  // namespace baton
