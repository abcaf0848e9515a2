// What the console and `baton-ctl top` draw: maps of blocks as text, and pulls that are over.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "scheduler/admin/block_map.h"
#include "scheduler/admin/pull_watch.h"
#include "scheduler/admin/top_view.h"

namespace baton {
namespace {

std::vector<BlockId> take(BlockPool& pool, std::uint32_t n) {
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.allocate(n, blocks));
  return blocks;
}

/// The letters of a map, one a cell.
std::string cells(const std::string& map) { return expand_map(map, 1U << 20U); }

TEST(BlockMap, RunsAreCounted) {
  RunLengthText text;
  for (const char letter : std::string("ffffffffffffcooo")) text.add(letter);
  EXPECT_EQ(text.take(), "12fc3o");
  EXPECT_EQ(text.take(), "");
}

TEST(BlockMap, IsNeverLongerThanTwoCharactersACell) {
  RunLengthText text;
  std::size_t cells = 0;
  for (std::uint32_t run = 1; run <= 64; ++run) {
    for (std::uint32_t i = 0; i < run; ++i, ++cells) text.add("foxcp"[run % 5]);
  }
  EXPECT_LE(text.take().size(), 2 * cells);
}

TEST(BlockMap, EveryBlockHasItsState) {
  BlockPool pool(10);
  const std::vector<BlockId> blocks = take(pool, 4);
  pool.release(blocks[1], /*last_sent=*/4, /*done=*/2);  // fenced until the step is done
  std::string expected(10, 'f');
  for (const BlockId block : blocks) expected[block] = 'o';
  expected[blocks[1]] = 'x';
  EXPECT_EQ(cells(block_map(pool, false, 1)), expected);
  EXPECT_EQ(block_map(pool, true, 1), "");
  EXPECT_EQ(block_map(BlockPool(3, 5), true, 1), "5f");
}

TEST(BlockMap, LargePoolsShareCells) {
  EXPECT_EQ(blocks_per_cell(0, 2048), 1U);
  EXPECT_EQ(blocks_per_cell(2048, 2048), 1U);
  EXPECT_EQ(blocks_per_cell(2049, 2048), 2U);
  BlockPool pool(100'000);
  const std::uint32_t per_cell = blocks_per_cell(pool.total(), 2048);
  EXPECT_EQ(per_cell, 49U);
  const std::vector<BlockId> one = take(pool, 1);
  const std::string map = cells(block_map(pool, false, per_cell));
  EXPECT_EQ(map.size(), 2041U);
  // One owned block among 49 is not lost.
  EXPECT_EQ(map[one[0] / per_cell], 'p');
  EXPECT_EQ(std::count(map.begin(), map.end(), 'f'), 2040);
}

TEST(BlockMap, ACellIsWhatMostOfItsBlocksAre) {
  EXPECT_EQ(cell_letter(4, 0, 0, 0), 'f');
  EXPECT_EQ(cell_letter(1, 3, 0, 0), 'c');
  EXPECT_EQ(cell_letter(1, 2, 1, 0), 'p');
  EXPECT_EQ(cell_letter(2, 0, 2, 0), 'o');
  EXPECT_EQ(cell_letter(1, 0, 0, 1), 'x');
}

TEST(BlockMap, BlocksOfARequestAreRangesOfCells) {
  const std::vector<BlockId> blocks = {12, 3, 4, 5, 6, 7};
  EXPECT_EQ(cell_ranges(blocks, 0, 1, 8), "3-7,12");
  EXPECT_EQ(cell_ranges(blocks, 0, 4, 8), "0-1,3");
  EXPECT_EQ(cell_ranges(blocks, 0, 1, 1), "3-7");
  EXPECT_EQ(cell_ranges(blocks, 5, 1, 8), "0-2,7");  // from another part's first block on
  EXPECT_EQ(cell_ranges({}, 0, 1, 8), "");
}

TEST(TopView, MapsAreMadeSmallerWithoutLosingWhatIsRare) {
  EXPECT_EQ(expand_map("3f2o", 8), "fffoo");
  EXPECT_EQ(expand_map("4f4o", 2), "fo");
  EXPECT_EQ(expand_map("7fo8c", 2), "pc");
  EXPECT_EQ(expand_map("99999999999f", 4).size(), 4U);  // nobody's number fills the memory
  EXPECT_EQ(expand_map("", 4), "");
}

State with_pull(PullId* id) {
  State state;
  Request& request = state.requests.create();
  request.name = {7, 3};
  OpenPull& pull = state.pulls.create();
  pull.request = request.id;
  pull.from_worker = 0;
  pull.to_worker = 1;
  pull.from = {1, 2};
  pull.to = {5, 6};
  *id = pull.id;
  return state;
}

TEST(PullWatch, NotesNothingWhileNobodyLooks) {
  PullId id = 0;
  const State state = with_pull(&id);
  PullWatch watch;
  watch.ended(state, id, kSecond);
  EXPECT_TRUE(watch.recent().empty());
  watch.look(2 * kSecond);
  watch.ended(state, id, 2 * kSecond + PullWatch::kPatience);
  ASSERT_EQ(watch.recent().size(), 1U);
  EXPECT_EQ(watch.recent()[0].request, (RequestId{7, 3}));
  EXPECT_EQ(watch.recent()[0].target, (std::vector<BlockId>{5, 6}));
  watch.ended(state, id, 2 * kSecond + PullWatch::kPatience + 1);
  EXPECT_TRUE(watch.recent().empty());
}

TEST(PullWatch, ForgetsWhatIsOldOrTooMuch) {
  PullId id = 0;
  const State state = with_pull(&id);
  PullWatch watch;
  watch.look(0);
  for (std::size_t i = 0; i < 3 * PullWatch::kMost; ++i) watch.ended(state, id, 1);
  EXPECT_EQ(watch.recent().size(), PullWatch::kMost);
  watch.ended(state, id + 1, 1);  // one that the books do not know
  EXPECT_EQ(watch.recent().size(), PullWatch::kMost);
  watch.look(1 + PullWatch::kKept);
  EXPECT_EQ(watch.recent().size(), PullWatch::kMost);
  watch.look(2 + PullWatch::kKept);
  EXPECT_TRUE(watch.recent().empty());
}

nlohmann::json live_json() {
  return nlohmann::json::parse(R"({
    "at_s": 10.0, "epoch": "1", "build": "0.1.0", "frontends": 1, "running": 70, "waiting": 0,
    "counters": {"tokens": 100, "handoffs": 1, "finished": 1},
    "workers": [{"name": "decode0\u001b[31m", "role": "decode", "state": "ready", "steps": 10,
                 "tokens": 20, "rows": 4, "sequences": 4, "device": "cpu"}],
    "pools": [{"worker": "decode0\u001b[31m", "part": "pool", "total": 900, "free": 800,
               "cached": 50, "owned": 50, "fenced": 0, "per_cell": 1, "map": "800f50c50o"}],
    "queue": [],
    "requests": [{"id": "12345678-9", "phase": "decode", "prompt_tokens": 12, "tokens": 3,
                  "max_tokens": 64, "age_s": 1.5, "worker": "decode0", "target": ""}]})");
}

TEST(TopView, FitsItsTerminalAndShowsNobodysControlCharacters) {
  TopView view({.colour = false, .utf8 = false});
  view.take(live_json());
  nlohmann::json later = live_json();
  later["at_s"] = 12.0;
  later["counters"]["tokens"] = 300;
  later["workers"][0]["steps"] = 30;
  view.take(later);
  EXPECT_DOUBLE_EQ(view.rates().tokens, 100);
  EXPECT_DOUBLE_EQ(view.rates().workers.begin()->second.steps, 10);
  for (const TopSize size : {TopSize{80, 24}, TopSize{140, 50}, TopSize{20, 5}, TopSize{1, 1}}) {
    const std::vector<std::string> lines = view.draw(size);
    EXPECT_LE(lines.size(), static_cast<std::size_t>(size.rows));
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), static_cast<std::size_t>(size.columns)) << line;
      EXPECT_EQ(line.find('\x1b'), std::string::npos);
    }
  }
  const auto lines = view.draw({80, 24});
  const std::string all =
      std::accumulate(lines.begin(), lines.end(), std::string(),
                      [](const std::string& a, const std::string& b) { return a + b + "\n"; });
  EXPECT_NE(all.find("100 tokens/s"), std::string::npos) << all;
  EXPECT_NE(all.find("3/64"), std::string::npos) << all;
  EXPECT_NE(all.find("and 69 more"), std::string::npos) << all;
}

TEST(TopView, BeginsAnewWithANewScheduler) {
  TopView view({});
  view.take(live_json());
  nlohmann::json other = live_json();
  other["epoch"] = "2";
  other["at_s"] = 0.5;
  view.take(other);
  EXPECT_DOUBLE_EQ(view.rates().tokens, 0);
}

}  // namespace
}  // namespace baton
