// Requests that begin alike: what is named again, what is computed again, what gives way.
#include <algorithm>

#include "tests/unit/scheduler/cached_cluster.h"

namespace baton::test {
namespace {

TEST(PrefixCache, TheNextTurnNamesTheBlocksOfTheLast) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, words(9));
  c.run();
  EXPECT_EQ(c.pool("mixed0").owned, 0U);
  EXPECT_EQ(c.pool("mixed0").cached,
            3U);  // 9 + 3 tokens have their KV; the last one was never read
  std::vector<Token> next = words(9);
  next.insert(next.end(), 4, kWord);
  next.push_back(77);
  c.ask(2, next);
  c.run();
  const AddSequence first = c.added(w, 0);
  const AddSequence second = c.added(w, 1);
  EXPECT_EQ(second.computed, 12U);
  EXPECT_TRUE(std::equal(first.blocks.begin(), first.blocks.begin() + 3, second.blocks.begin()));
  EXPECT_EQ(c.tokens_of(2), 4U);
  EXPECT_EQ(c.state.counters.cached_tokens, 12U);
}

TEST(PrefixCache, ARunningRequestSharesItsPrompt) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, words(8), 20);
  c.turn();
  c.answer(w);
  c.ask(2, words(10), 20);
  c.turn();
  EXPECT_EQ(c.added(w, 1).computed, 8U);
  EXPECT_EQ(c.source(1).tail().blocks[1], c.source(2).tail().blocks[1]);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  EXPECT_EQ(c.tokens_of(2), 20U);
}

TEST(PrefixCache, TheLastTokenIsAlwaysComputed) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  for (const std::uint64_t counter : {1, 2}) {
    c.ask(counter, words(8));
    c.run();
  }
  EXPECT_EQ(c.added(w, 1).computed, 4U);  // not 8: somebody must sample the first token
}

TEST(PrefixCache, AnotherSaltFindsNothing) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, words(9), 4, "a");
  c.run();
  c.ask(2, words(9), 4, "b");
  c.run();
  c.ask(3, words(9), 4, "a");
  c.run();
  EXPECT_EQ(c.added(w, 1).computed, 0U);
  EXPECT_EQ(c.added(w, 2).computed, 8U);
}

TEST(PrefixCache, LogProbabilitiesOfAPromptNeedAllOfIt) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, words(9));
  c.run();
  Submit m = c.request(2, 0, 4);
  m.prompt = words(9);
  m.sampling.prompt_logprobs = 0;
  c.from_frontend(c.frontend, m);
  c.run();
  EXPECT_EQ(c.added(w, 1).computed, 0U);
}

TEST(PrefixCache, TheLongestUnusedGivesWayAndOfItTheEndFirst) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed, /*blocks=*/8);
  c.ask(1, words(12, 10), 1);  // 3 blocks stay
  c.run();
  c.ask(2, words(12, 30), 1);  // 3 more
  c.run();
  EXPECT_EQ(c.pool("mixed0").cached, 6U);
  c.ask(3, words(12, 50), 1);  // wants 4 of the 2 that are free
  c.run();
  EXPECT_EQ(c.tokens_of(3), 1U);
  c.ask(4, words(13, 10), 1);  // of request 1, the first block is left
  c.run();
  EXPECT_EQ(c.added(w, 3).computed, 4U);
}

TEST(PrefixCache, CachedBlocksNeverKeepARequestWaiting) {
  Cached c;
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/6);
  for (std::uint64_t counter = 1; counter <= 20; ++counter) {
    c.ask(counter, words(16, static_cast<Token>(counter)), 8);
    c.run();
    EXPECT_EQ(c.code(counter), ErrorCode::ok);
  }
  const PoolAudit pool = c.pool("mixed0");
  EXPECT_EQ(pool.cached + pool.free, 6U);
}

TEST(PrefixCache, AHandOffPullsOnlyWhatItsTargetLacks) {
  Cached c;
  c.ready_worker("prefill0", Role::prefill);
  const LinkId d = c.ready_worker("decode0", Role::decode);
  c.ask(1, words(10));
  c.run();
  c.ask(2, words(14));
  c.run();
  const std::vector<Pull> pulls = c.sent<Pull>(d);
  std::size_t blocks = 0;
  for (const Pull& pull : pulls) blocks += pull.to.size();
  EXPECT_EQ(blocks, 3U + 2U);  // the second prompt's first two blocks are there
  EXPECT_EQ(c.state.counters.pulls_saved, 2U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

TEST(PrefixCache, AHandOffWithNothingToPullIsDoneAtOnce) {
  Cached c;
  c.ready_worker("prefill0", Role::prefill);
  const LinkId d = c.ready_worker("decode0", Role::decode);
  for (const std::uint64_t counter : {1, 2}) {
    c.ask(counter, words(8));
    c.run();
  }
  EXPECT_EQ(c.state.counters.handoffs, 2U);
  std::size_t blocks = 0;
  for (const Pull& pull : c.sent<Pull>(d)) blocks += pull.to.size();
  EXPECT_EQ(blocks, 2U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

TEST(PrefixCache, ANewTermBeginsEmpty) {
  Cached c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, words(9));
  c.run();
  Hello again = Cluster::hello_of("mixed0", 100);
  again.hello_id = 2;
  c.from_worker(w, again);
  c.ask(2, words(9));
  c.run();
  EXPECT_EQ(c.added(w, 1).computed, 0U);
}

TEST(PrefixCache, ItIsLeftToTheWorkerThatKnowsIt) {
  Cached c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  const LinkId knows = c.ready_worker("mixed1", Role::mixed);
  c.event(SetDraining{"mixed0", true});
  c.ask(1, words(40), 4);
  c.run();
  c.event(SetDraining{"mixed0", false});
  c.ask(2, words(41), 4);   // begins as the first did
  c.ask(3, words(41, 50));  // nobody knows it
  c.run();
  EXPECT_EQ(c.added(knows, 1).computed, 40U);
  EXPECT_EQ(c.added(first, 0).prompt, words(41, 50));
}

TEST(PrefixCache, OffMeansOff) {
  Cluster c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  for (const std::uint64_t counter : {1, 2}) {
    c.submit(counter, 9);
    c.run();
  }
  EXPECT_EQ(c.last_plan(w).add.size(), 0U);
  EXPECT_EQ(c.state.counters.cached_tokens, 0U);
  EXPECT_EQ(c.pool("mixed0").free, 100U);
}

}  // namespace
}  // namespace baton::test
