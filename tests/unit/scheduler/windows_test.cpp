// Models whose layers have windows: what is given back, what is found again, what is handed over.
// What a window needs is counted here anew, from positions.
#include <algorithm>
#include <set>

#include "tests/unit/scheduler/cached_cluster.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kPerBlock = 4;

/// Blocks in which the query at `position` sees a key of those before it.
std::set<std::uint32_t> seen_columns(std::uint32_t window, std::uint32_t position) {
  std::set<std::uint32_t> columns;
  for (std::uint32_t key = 0; key < position; ++key) {
    if (window == 0 || key + window > position) columns.insert(key / kPerBlock);
  }
  return columns;
}

struct Windows : Cached {
  explicit Windows(std::vector<std::uint32_t> of, const Settings& settings = {})
      : Cached(settings), windows(std::move(of)) {}

  LinkId join(const std::string& name, Role role, std::uint32_t blocks,
              std::uint32_t host_blocks = 0) {
    const LinkId link = register_worker(name, role);
    Hello hello = hello_of(name, blocks, 1, host_blocks);
    hello.windows = windows;
    from_worker(link, hello);
    return link;
  }
  /// Of the groups' columns of a table, those that have a block.
  std::vector<std::set<std::uint32_t>> held(const std::vector<BlockId>& table) const {
    std::vector<std::set<std::uint32_t>> columns(windows.size());
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i] == kNoBlock) continue;
      columns[i % windows.size()].insert(static_cast<std::uint32_t>(i / windows.size()));
    }
    return columns;
  }
  /// Every group has what the token at `position` sees, and at most what is written behind it.
  void expect_sees(const std::vector<BlockId>& table, std::uint32_t position) const {
    const auto columns = held(table);
    for (std::size_t g = 0; g < windows.size(); ++g) {
      const std::set<std::uint32_t> seen = seen_columns(windows[g], position);
      EXPECT_TRUE(std::includes(columns[g].begin(), columns[g].end(), seen.begin(), seen.end()))
          << "group " << g << " at " << position;
      const std::uint32_t first = seen.empty() ? position / kPerBlock : *seen.begin();
      EXPECT_TRUE(columns[g].empty() || *columns[g].begin() >= first)
          << "group " << g << " at " << position << " keeps what nobody sees";
    }
  }
  std::vector<std::uint32_t> windows;
};

TEST(Windows, ALongGenerationHoldsWhatItsWindowNeeds) {
  for (const std::uint32_t window : {1U, 2U, 4U, 7U, 8U, 9U, 30U}) {
    SCOPED_TRACE("window " + std::to_string(window));
    const std::uint32_t most = (window + kPerBlock - 1) / kPerBlock + 2;
    Settings settings;
    settings.prompt_chunk = kPerBlock;
    Windows c({window}, settings);
    const LinkId w = c.join("mixed0", Role::mixed, most);  // not one more than it needs
    c.ask(1, words(50), 300);
    for (int turn = 0; turn < 2000 && c.terminal(1) == nullptr; ++turn) {
      c.turn();
      EXPECT_LE(c.pool("mixed0").owned, most);
      if (c.worker("mixed0").compute.steps.empty()) break;
      c.answer(w);
      if (Sequence* s = c.state.sequences.find(c.find(1)->source); s != nullptr && s->on_worker)
        c.expect_sees(s->tail().blocks, s->computed);
    }
    EXPECT_EQ(c.code(1), ErrorCode::ok);
    EXPECT_EQ(c.tokens_of(1), 300U);
    EXPECT_EQ(c.state.counters.preemptions, 0U);
  }
}

TEST(Windows, GroupsHoldWhatEachOfThemNeeds) {
  Windows c({0, 6, 13});
  const LinkId w = c.join("mixed0", Role::mixed, 100);
  c.ask(1, words(40), 60);
  std::uint64_t most = 0;
  while (c.turn(), !c.worker("mixed0").compute.steps.empty()) {
    if (Sequence* s = c.state.sequences.find(c.find(1)->source); s != nullptr && s->computed > 45) {
      c.expect_sees(s->tail().blocks, s->computed);
      const std::uint32_t all = (s->scheduled + kPerBlock - 1) / kPerBlock;
      EXPECT_LE(c.pool("mixed0").owned, all + 1 + (2 + 2) + (4 + 2));
      most = std::max<std::uint64_t>(most, c.pool("mixed0").owned);
    }
    c.answer(w);
  }
  EXPECT_EQ(c.tokens_of(1), 60U);
  EXPECT_GT(most, 25U);  // those of the group that sees all
}

TEST(Windows, APromptLongerThanThePoolIsServed) {
  Windows c({8});
  const LinkId w = c.join("mixed0", Role::mixed, 12);  // 48 tokens at once
  EXPECT_EQ(max_context(c.state), 1024U);
  c.ask(1, words(500), 8);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 8U);
  EXPECT_EQ(c.state.counters.preemptions, 0U);
  EXPECT_GT(c.sent<StepPlan>(w).size(), 10U);
}

/// Before the next plan a hand-off may take them.
TEST(Windows, APromptHasTheBlocksInThePlanThatFindsThem) {
  Settings settings;
  settings.prompt_chunk = kPerBlock;
  settings.prompts_pause_decode = true;
  settings.steps_in_flight = 1;
  Windows c({8}, settings);
  const LinkId w = c.join("mixed0", Role::mixed, 6);
  c.ask(1, words(60), 4);
  for (int chunk = 0; chunk < 14; ++chunk) {
    c.turn();
    ASSERT_EQ(c.worker("mixed0").compute.steps.size(), 1U) << "chunk " << chunk;
    c.answer(w);
    c.worker("mixed0").compute.short_of_blocks = true;  // until now
  }
}

TEST(Windows, WithAGroupThatSeesAllThePoolHasItsEnd) {
  Windows c({0, 8});
  c.join("mixed0", Role::mixed, 24);  // 20 columns beside the four of the window
  EXPECT_EQ(max_context(c.state), 80U);
  c.ask(1, words(80), 8);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
  c.ask(2, words(60), 100);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 20U);
}

TEST(Windows, WhatIsGivenBackIsFoundAgain) {
  Windows c({8});
  const LinkId w = c.join("mixed0", Role::mixed, 100);
  c.ask(1, words(40));
  c.run();
  EXPECT_EQ(c.pool("mixed0").owned, 0U);
  EXPECT_EQ(c.pool("mixed0").cached, 10U);  // 43 tokens have their KV
  c.ask(2, words(31));
  c.run();
  const AddSequence first = c.added(w, 0);
  const AddSequence second = c.added(w, 1);
  EXPECT_EQ(second.computed, 28U);
  c.expect_sees(second.blocks, 28);
  // Token 28 sees 21 .. 28, the last tokens of column 5 and all of column 6.
  EXPECT_EQ(c.held(second.blocks)[0], (std::set<std::uint32_t>{5, 6, 7}));
}

TEST(Windows, OldBlocksGoAndTheEndIsStillFound) {
  Windows c({8});
  const LinkId w = c.join("mixed0", Role::mixed, 12);
  c.ask(1, words(100));
  c.run();
  EXPECT_LE(c.pool("mixed0").cached, 12U);
  c.ask(2, words(100), 4);
  c.run();
  EXPECT_EQ(c.added(w, 1).computed, 96U) << "its beginning is gone, and nobody looks at it";
  c.ask(3, words(30), 4);
  c.run();
  EXPECT_EQ(c.added(w, 2).computed, 0U) << "what it would look at has been taken for others";
}

TEST(Windows, AHitNeedsEveryGroup) {
  Windows c({0, 8});
  const LinkId w = c.join("mixed0", Role::mixed, 100);
  c.ask(1, words(60), 2);
  c.run();
  // The window's block of column 12 is lost: beginnings that look at it are not found.
  BlockPool& pool = c.worker("mixed0").store.pool;
  const BlockPool::Match all = pool.match("", words(60), c.worker("mixed0").store.shape, 100);
  ASSERT_EQ(all.columns, 15U);
  const BlockId lost =
      pool.match("", words(60), c.worker("mixed0").store.shape, 14).blocks[12 * 2 + 1];
  ASSERT_NE(lost, kNoBlock);
  pool.forget(lost);
  c.ask(2, words(58), 2);
  c.run();
  EXPECT_EQ(c.added(w, 1).computed, 48U);
  c.expect_sees(c.added(w, 1).blocks, 48);
}

TEST(Windows, OnlyWhatIsSeenIsHandedOver) {
  Settings settings;
  settings.prompt_chunk = 16;
  Windows c({0, 8}, settings);
  const LinkId p = c.join("prefill0", Role::prefill, 100);
  const LinkId d = c.join("decode0", Role::decode, 100);
  c.ask(1, words(60), 20);
  std::size_t pulled = 0;
  for (int i = 0; i < 200; ++i) {
    c.turn();
    for (; !c.pulls[d].empty(); c.done_pull(d)) pulled += c.pulls[d].front().from.size();
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(p);
    if (!c.worker("decode0").compute.steps.empty()) c.answer(d);
  }
  EXPECT_EQ(c.tokens_of(1), 20U);
  // 15 blocks of all that is seen; token 60 sees 53 .. 60, which begin in column 13.
  EXPECT_EQ(pulled, 15U + 2U);
  c.expect_sees(c.added(d, 0).blocks, 60);
}

TEST(Windows, WhereWindowsAreEverywhereAHandOffIsShort) {
  Windows c({8, 16});
  c.join("prefill0", Role::prefill, 30);
  const LinkId d = c.join("decode0", Role::decode, 30);
  c.ask(1, words(200), 20);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  std::size_t pulled = 0;
  for (const Pull& pull : c.sent<Pull>(d)) pulled += pull.from.size();
  EXPECT_EQ(pulled, 2U + 4U);  // token 200 sees 193 .. and 185 ..
}

TEST(Windows, BeamsShareWhatTheySee) {
  Windows c({0, 6});
  const LinkId w = c.join("mixed0", Role::mixed, 200);
  Submit m = c.request(1, 0, 30);
  m.prompt = words(30);
  m.sampling.num_beams = 3;
  m.sampling.stop_ids = {};
  c.from_frontend(c.frontend, m);
  for (int i = 0; i < 100 && c.terminal(1) == nullptr; ++i) {
    c.turn();
    Worker& worker = c.worker("mixed0");
    if (worker.compute.steps.empty()) break;
    StepResult result = c.result_of(worker);
    const InFlightStep& step = worker.compute.steps.front();
    result.sequences.clear();
    result.tokens.clear();
    std::vector<SequenceId> beams = step.beams;
    for (const auto& [id, n] : step.rows) {
      const Sequence* s = c.state.sequences.find(id);
      if (s->computed + n == s->prefill_length) beams.push_back(id);
    }
    for (std::uint32_t b = 0; b < beams.size(); ++b) {
      const std::vector<Token> tokens = {static_cast<Token>(20 + b), static_cast<Token>(30 + b),
                                         static_cast<Token>(40 + b)};
      const std::vector<float> scores = {-0.5F, -0.6F, -0.7F};
      result.candidates.push(b, -0.5F, tokens, scores);
      result.beam_sequences.push_back(beams[b]);
    }
    c.from_worker(w, result);
    for (const SequenceId line : c.find(1) != nullptr && c.find(1)->beams
                                     ? c.find(1)->beams->lines
                                     : std::vector<SequenceId>()) {
      if (const Sequence* s = c.state.sequences.find(line); s != nullptr && s->on_worker)
        c.expect_sees(s->tail().blocks, s->computed);
    }
  }
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.pool("mixed0").owned, 0U);
}

/// Where a request must make room, those that decode go on: a step in flight leaves blocks behind.
TEST(Windows, NobodyIsPreemptedForWhatASteppedWindowLeavesBehind) {
  Settings settings;
  settings.watermark = 0.01;
  Windows c({8}, settings);
  c.join("mixed0", Role::mixed, 12);  // three sequences of four blocks
  for (std::uint64_t counter = 1; counter <= 3; ++counter)
    c.ask(counter, words(9, static_cast<Token>(20 * counter)), 60);
  c.run();
  for (std::uint64_t counter = 1; counter <= 3; ++counter) EXPECT_EQ(c.tokens_of(counter), 60U);
  EXPECT_EQ(c.state.counters.preemptions, 0U);
}

/// A window that moves on leaves the blocks that it shares to others: a prompt that begins beside
/// them needs as many of its own.
TEST(Windows, AMovingWindowNeedsRoomForWhatItShares) {
  Settings settings;
  settings.watermark = 0;
  settings.prompt_chunk = kPerBlock;
  Windows c({8}, settings);
  const LinkId w = c.join("mixed0", Role::mixed, 6);
  c.ask(1, words(13), 60);
  while (c.tokens_of(1) < 2) {
    c.turn();
    c.answer(w);
  }
  // Two would do beside the two that it finds and shares; its window needs four as it moves on.
  ASSERT_EQ(c.worker("mixed0").store.pool.available_blocks(), 3U);
  c.ask(2, words(40), 4);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 60U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

TEST(Windows, PoolsOfOtherGroupsAreRefused) {
  Windows c({0, 8});
  c.join("mixed0", Role::mixed, 50);
  c.windows = {0, 16};
  const LinkId other = c.join("mixed1", Role::mixed, 50);
  ASSERT_EQ(c.sent<Refused>(other).size(), 1U);
  EXPECT_NE(c.sent<Refused>(other)[0].reason.find("windows"), std::string::npos);
}

TEST(Windows, ADeathInAKeptPoolGoesOnWithWhatItsWindowSees) {
  Windows c({8});
  const LinkId link = c.register_worker("mixed0", Role::mixed);
  Hello hello = Windows::hello_of("mixed0", 20);
  hello.windows = c.windows;
  hello.leased = true;
  c.from_worker(link, hello);
  c.ask(1, words(50), 40);
  for (int i = 0; i < 20; ++i) {
    c.turn();
    if (!c.worker("mixed0").compute.steps.empty()) c.answer(link);
  }
  c.turn();  // steps in flight have no answer
  ASSERT_EQ(c.phase(1), Phase::decode);
  c.gone(link);
  const LinkId next = c.register_worker("mixed0", Role::mixed, 2);
  hello.incarnation = 2;
  c.from_worker(next, hello);
  c.turn();
  const AddSequence back = c.added(next, 0);
  EXPECT_GT(back.computed, 50U);
  c.expect_sees(back.blocks, back.computed);
  EXPECT_EQ(c.state.counters.resumed, 1U);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 40U);
}

}  // namespace
}  // namespace baton::test
