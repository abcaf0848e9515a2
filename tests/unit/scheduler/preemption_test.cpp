// A pool that does not suffice, and blocks that may not be reused yet.
#include <algorithm>
#include <set>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings one_step() {
  Settings settings;
  settings.steps_in_flight = 1;
  return settings;
}

/// Two requests of 8 + n tokens in a pool of 6 blocks of 4: both start, one must give way.
struct Tight : Cluster {
  explicit Tight(const Settings& settings = one_step())
      : Cluster(settings), w(ready_worker("mixed0", Role::mixed, /*blocks=*/6)) {
    submit(1, 8, 12);
    submit(2, 8, 12);
  }
  LinkId w;
};

TEST(Preemption, TheLatestArrivalGivesWayAndKeepsItsTokens) {
  Tight c;
  c.turn();
  std::size_t before = 0;
  while (c.phase(2) != Phase::waiting && c.phase(2) != Phase::preempting) {
    before = c.tokens_of(2);
    c.answer(c.w);
    c.turn();
  }
  EXPECT_EQ(c.state.counters.preemptions, 1U);
  EXPECT_EQ(c.phase(1), Phase::decode);
  EXPECT_EQ(c.find(2)->generated.size(), c.tokens_of(2));
  EXPECT_GE(c.tokens_of(2), before);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 12U);
  EXPECT_EQ(c.tokens_of(2), 12U);
  EXPECT_EQ(c.code(2), ErrorCode::ok);
}

TEST(Preemption, ItPrefillsAgainWithPromptAndTokensUnderANewName) {
  Tight c;
  c.turn();
  const SequenceId old = c.find(2)->source;
  while (c.state.counters.preemptions == 0) {
    c.answer(c.w);
    c.turn();
  }
  c.run();
  const AddSequence* again = nullptr;
  const std::vector<StepPlan> plans = c.sent<StepPlan>(c.w);
  for (const StepPlan& plan : plans) {
    for (const AddSequence& add : plan.add) again = &add;
  }
  ASSERT_NE(again, nullptr);
  EXPECT_NE(again->sequence, old);
  EXPECT_EQ(again->prompt.size(), 8U);
  EXPECT_GT(again->generated.size(), 0U);
  EXPECT_EQ(again->computed, 0U);
}

TEST(Preemption, ResultsInFlightCountAndItIsAddedAgainOnlyAfterThem) {
  Tight c{Settings{}};  // two steps in flight
  c.turn();
  while (c.state.counters.preemptions == 0) {
    c.answer(c.w);
    c.turn();
  }
  ASSERT_EQ(c.phase(2), Phase::preempting);
  const std::size_t before = c.tokens_of(2);
  const std::size_t inflight = c.source(2).inflight;
  ASSERT_GT(inflight, 0U);
  for (std::size_t i = 0; i < inflight; ++i) {
    EXPECT_EQ(c.phase(2), Phase::preempting);
    c.answer(c.w);
  }
  EXPECT_EQ(c.tokens_of(2), before + inflight);
  EXPECT_NE(c.phase(2), Phase::preempting);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 12U);
}

TEST(Preemption, TheLastSequenceIsNeverPreempted) {
  Cluster c(one_step());
  c.ready_worker("mixed0", Role::mixed, 5);
  c.submit(1, 8, 12);
  c.run();
  EXPECT_EQ(c.state.counters.preemptions, 0U);
  EXPECT_EQ(c.tokens_of(1), 12U);
}

TEST(Preemption, OneThatOutgrowsAPoolAloneIsAnError) {
  Cluster c(one_step());
  const LinkId w = c.ready_worker("mixed0", Role::mixed, 4);
  c.submit(1, 8, 8);
  c.turn();
  c.find(1)->sampling.max_tokens = 30;  // as if admitted when a larger pool was known
  while (c.terminal(1) == nullptr) {
    c.answer(w);
    c.turn();
  }
  EXPECT_EQ(c.code(1), ErrorCode::kv_exhausted);
  EXPECT_EQ(c.terminal(1)->n[0], c.tokens_of(1));
}

TEST(Preemption, WhileDecodeWaitsForBlocksNobodyElseGetsAny) {
  Cluster c(one_step());
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode, /*blocks=*/7);
  c.submit(1, 4, 20);
  c.turn();
  c.answer(prefill);
  c.turn();
  c.done_pull(decode);  // 1 decodes with two blocks
  c.turn();
  c.submit(2, 14, 20);
  for (int i = 0; i < 5 && c.pulls[decode].empty(); ++i) {
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(prefill);
    c.turn();
  }
  ASSERT_EQ(c.pulls[decode].size(), 1U);  // 2 takes four blocks; its pull stays open, one is left
  for (int i = 0; i < 200 && c.phase(1) == Phase::decode; ++i) {
    if (!c.worker("decode0").compute.steps.empty()) {
      c.answer(decode);
    } else {
      c.done_pull(decode);  // decode stands still: its blocks are written by this pull
    }
    c.turn();
    ASSERT_LE(c.sent<Pull>(decode).size(), 20U) << "pulled again and again";
  }
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  EXPECT_EQ(c.tokens_of(2), 14U);  // 28 tokens is all that the pool holds
}

// ---------------------------------------------------------------- delayed release

TEST(Release, BlocksOfAStepInFlightAreFencedUntilItsResult) {
  Cluster c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.turn();  // two steps in flight
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  EXPECT_EQ(c.pool("mixed0").owned, 0U);
  EXPECT_EQ(c.pool("mixed0").fenced, 3U);
  c.answer(w);
  EXPECT_EQ(c.pool("mixed0").fenced, 3U);
  c.answer(w);
  EXPECT_EQ(c.pool("mixed0").fenced, 0U);
}

TEST(Release, AFencedBlockIsNotHandedOut) {
  Cluster c(one_step());
  const LinkId w = c.ready_worker("mixed0", Role::mixed, 6);
  c.submit(1, 8, 50);
  c.turn();
  const std::vector<BlockId> fenced = c.source(1).tail().blocks;
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  c.state.settings.steps_in_flight = 2;
  c.submit(2, 8, 50);
  c.turn();
  for (const BlockId block : c.source(2).tail().blocks) {
    EXPECT_EQ(std::count(fenced.begin(), fenced.end(), block), 0);
  }
  EXPECT_EQ(c.pool("mixed0").free, 0U);
  c.submit(3, 8, 50);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::waiting);
  c.answer(w);
  EXPECT_EQ(c.pool("mixed0").free, 3U);
}

TEST(Release, AnEndedSequenceIsDroppedFromItsWorkerAlsoWithNothingElseToDo) {
  Cluster c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 3);
  c.run();
  std::set<SequenceId> known;
  for (const StepPlan& plan : c.sent<StepPlan>(w)) {
    for (const SequenceId id : plan.drop) EXPECT_EQ(known.erase(id), 1U);
    for (const AddSequence& add : plan.add) known.insert(add.sequence);
  }
  EXPECT_TRUE(known.empty());
  EXPECT_EQ(c.pool("mixed0").free, 100U);
}

}  // namespace
}  // namespace baton::test
