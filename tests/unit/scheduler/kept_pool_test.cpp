// Pools that outlive their workers: who goes on where it was, who does not, and who waits how long.
#include "scheduler/apply/kept_pool.h"

#include <gtest/gtest.h>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

class KeptPool : public testing::Test {
 protected:
  /// A worker whose pool a memory process keeps.
  LinkId join(const std::string& name, Role role, Incarnation incarnation, AllocationId pool,
              std::uint32_t blocks = 100, std::uint32_t host_blocks = 0) {
    const LinkId link = c.register_worker(name, role, incarnation);
    Hello hello = Cluster::hello_of(name, blocks, incarnation, host_blocks);
    hello.allocation = pool;
    hello.leased = true;
    c.from_worker(link, hello);
    return link;
  }
  /// Decodes so many tokens of request 1, and has two further steps under way.
  void decode(LinkId link, std::uint32_t prompt, std::size_t tokens, std::uint32_t max_tokens) {
    c.submit(1, prompt, max_tokens);
    while (c.tokens_of(1) < tokens) {
      c.turn();
      c.answer(link);
    }
    c.turn();
    ASSERT_EQ(c.worker("mixed0").compute.steps.size(), 2U);
  }

  StepPlan first_plan(LinkId link) const {
    const std::vector<StepPlan> plans = c.sent<StepPlan>(link);
    return plans.empty() ? StepPlan{} : plans.front();
  }

  Cluster c{Settings{}, /*prefix_cache=*/true};
};

TEST_F(KeptPool, ASequenceGoesOnWithoutAPromptTokenComputedAgain) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  const std::uint64_t computed = c.state.counters.computed_tokens;
  c.gone(old);
  EXPECT_EQ(c.phase(1), Phase::decode);
  EXPECT_TRUE(c.source(1).parked);
  EXPECT_EQ(c.source(1).computed, 11U);  // the third token's KV was being written

  const LinkId link = c.register_worker("mixed0", Role::mixed, 2);
  EXPECT_EQ(c.sent<Registered>(link).size(), 1U) << "nobody has to let go of anything";
  Hello hello = Cluster::hello_of("mixed0", 100, 2);
  hello.allocation = 77;
  hello.leased = true;
  c.from_worker(link, hello);
  c.turn();
  const StepPlan plan = first_plan(link);
  ASSERT_EQ(plan.add.size(), 1U);
  EXPECT_TRUE(plan.add[0].decode);
  EXPECT_EQ(plan.add[0].computed, 11U);
  EXPECT_EQ(plan.add[0].generated.size(), 3U);
  EXPECT_TRUE(plan.rows.empty());
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  EXPECT_EQ(c.state.counters.computed_tokens, computed);
  EXPECT_EQ(c.state.counters.resumed, 1U);
}

TEST_F(KeptPool, ASequenceWhoseNextBlockWasNotGivenYetGetsItWhenItGoesOn) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  c.submit(1, 6, 20);
  c.turn();
  c.answer(old);
  while (c.source(1).computed % 4 != 0) {
    c.turn();
    while (!c.worker("mixed0").compute.steps.empty()) c.answer(old);
  }
  c.gone(old);
  const LinkId link = join("mixed0", Role::mixed, 2, 77);
  c.turn();
  const StepPlan plan = first_plan(link);
  ASSERT_EQ(plan.add.size(), 1U);
  EXPECT_GT(plan.add[0].blocks.size() * 4, plan.add[0].computed);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
}

TEST_F(KeptPool, APromptGoesOnBehindItsEndedChunks) {
  c.state.settings.prompt_chunk = 8;
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  c.submit(1, 40, 4);
  c.turn();
  c.answer(old);
  c.turn();
  c.gone(old);
  EXPECT_EQ(c.source(1).computed, 8U);
  const LinkId link = join("mixed0", Role::mixed, 2, 77);
  c.turn();
  const auto plans = c.sent<StepPlan>(link);
  ASSERT_FALSE(plans.empty());
  ASSERT_EQ(plans[0].add.size(), 1U);
  EXPECT_EQ(plans[0].add[0].computed, 8U);
  EXPECT_FALSE(plans[0].add[0].decode);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 4U);
}

TEST_F(KeptPool, NobodyWaitsForLongerThanTheSettingSays) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.gone(old);
  c.tick();
  c.tick(c.state.settings.kept_wait - 1);
  EXPECT_EQ(c.phase(1), Phase::decode);
  c.tick(1);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_TRUE(c.logged("mixed0: does not come back: its pool is given up"));
  // A later process finds books without content, whatever its pool holds.
  const LinkId link = join("mixed0", Role::mixed, 2, 77);
  c.turn();
  ASSERT_EQ(first_plan(link).add.size(), 1U);
  EXPECT_EQ(first_plan(link).add[0].computed, 0U);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
}

TEST_F(KeptPool, WithoutAWaitRequestsGoAtOnceAndTheCacheStays) {
  c.state.settings.kept_wait = 0;
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.gone(old);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  const LinkId link = join("mixed0", Role::mixed, 2, 77);
  c.turn();
  EXPECT_EQ(first_plan(link).add[0].computed, 8U);  // two full blocks
}

TEST_F(KeptPool, AFreshPoolMeansThatEverythingIsComputedAgain) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.gone(old);
  const LinkId link = join("mixed0", Role::mixed, 2, 78);
  EXPECT_TRUE(c.logged("mixed0: comes back without its pool"));
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.turn();
  EXPECT_EQ(first_plan(link).add[0].computed, 0U);
}

TEST_F(KeptPool, APoolThatNobodyKeepsEndsWithItsProcess) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  c.worker("mixed0").store.offer.leased = false;  // as its heartbeats say: the memory process died
  decode(old, 9, 3, 20);
  c.gone(old);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.worker("mixed0").store.pool.total(), 0U);
}

TEST_F(KeptPool, AHandOffOutOfItGoesOnWhileItsWorkerIsAway) {
  const LinkId old = join("prefill0", Role::prefill, 1, 77);
  const LinkId decoder = join("decode0", Role::decode, 1, 88);
  c.submit(1, 9, 5);
  c.turn();
  c.answer(old);
  c.gone(old);
  EXPECT_EQ(c.phase(1), Phase::handoff);
  EXPECT_TRUE(c.sent<Close>(decoder).empty()) << "the mapping stays";
  c.turn();
  ASSERT_FALSE(c.pulls[decoder].empty());
  EXPECT_EQ(c.pulls[decoder].front().exporter_pid, 0) << "nobody's death ends the mapping";
  c.done_pull(decoder);
  EXPECT_EQ(c.phase(1), Phase::decode);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.state.counters.computed_tokens, 9U);
}

TEST_F(KeptPool, NothingIsPulledOutOfAPoolWhoseProcessDiedOfAFault) {
  const LinkId old = join("prefill0", Role::prefill, 1, 77);
  const LinkId decoder = join("decode0", Role::decode, 1, 88);
  c.submit(1, 9, 5);
  c.turn();
  c.answer(old);
  c.event(PoolFaulted{old});
  c.gone(old);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.sent<Close>(decoder).size(), 1U);
  c.turn();
  EXPECT_TRUE(c.pulls[decoder].empty());
  join("prefill0", Role::prefill, 2, 78);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.state.counters.computed_tokens, 19U) << "all of it again";
}

/// It was on its way when the mark was seen.
TEST_F(KeptPool, AHelloOfAProcessThatDiesOfAFaultIsNotHeard) {
  const LinkId old = join("prefill0", Role::prefill, 1, 77);
  join("decode0", Role::decode, 1, 88);
  c.event(PoolFaulted{old});
  Hello again = Cluster::hello_of("prefill0", 100, 1);
  again.hello_id = 2;
  again.allocation = 77;
  again.leased = true;
  c.from_worker(old, again);
  EXPECT_FALSE(c.worker("prefill0").ready());
  c.gone(old);
  join("prefill0", Role::prefill, 2, 78);
  c.submit(1, 9, 5);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
}

/// Its death was seen before its mark, as by a scheduler in another PID namespace.
TEST_F(KeptPool, AFaultThatIsToldLateGivesThePoolUp) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.gone(old);
  EXPECT_TRUE(c.source(1).parked);
  c.event(PoolFaulted{old});
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.worker("mixed0").store.pool.cached_blocks(), 0U);
  join("mixed0", Role::mixed, 2, 78);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
}

TEST_F(KeptPool, ANextProcessThatDiesOfAFaultBeforeItsHelloLeavesThePoolAsItWas) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.gone(old);
  const LinkId next = c.register_worker("mixed0", Role::mixed, 2);
  c.event(PoolFaulted{next});
  c.gone(next);
  EXPECT_TRUE(c.source(1).parked);
  join("mixed0", Role::mixed, 3, 77);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  EXPECT_EQ(c.state.counters.resumed, 1U);
}

TEST_F(KeptPool, WhatAPullBringsOutOfItIsNotUsed) {
  const LinkId old = join("prefill0", Role::prefill, 1, 77);
  const LinkId decoder = join("decode0", Role::decode, 1, 88);
  c.submit(1, 9, 5);
  c.turn();
  c.answer(old);
  c.turn();
  ASSERT_FALSE(c.pulls[decoder].empty()) << "all of it has been asked for";
  c.event(PoolFaulted{old});
  c.gone(old);
  while (!c.pulls[decoder].empty()) c.done_pull(decoder);
  EXPECT_NE(c.phase(1), Phase::decode);
  join("prefill0", Role::prefill, 2, 78);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.state.counters.computed_tokens, 19U);
}

TEST_F(KeptPool, APromptThatWaitsForADecoderDecodesWhereItIsWhenNoneComes) {
  const LinkId old = join("prefill0", Role::prefill, 1, 77);
  const LinkId decoder = join("decode0", Role::decode, 1, 88);
  c.submit(1, 9, 5);
  c.turn();
  c.answer(old);
  c.gone(old);
  c.gone(decoder);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::handoff);
  const LinkId link = join("prefill0", Role::prefill, 2, 77);
  c.turn();
  ASSERT_EQ(first_plan(link).add.size(), 1U);
  EXPECT_EQ(first_plan(link).add[0].computed, 9U);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
}

TEST_F(KeptPool, TheTargetOfAHandOffIsChosenAgain) {
  const LinkId prefiller = join("prefill0", Role::prefill, 1, 77);
  const LinkId old = join("decode0", Role::decode, 1, 88);
  c.submit(1, 9, 5);
  c.turn();
  c.answer(prefiller);
  c.turn();
  ASSERT_FALSE(c.pulls[old].empty());
  c.pulls.clear();
  c.gone(old);
  EXPECT_EQ(c.find(1)->target, 0U);
  join("decode0", Role::decode, 2, 88);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.state.counters.computed_tokens, 9U);
}

TEST_F(KeptPool, WhatWasBeingCopiedIsNotBelieved) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77, /*blocks=*/4, /*host_blocks=*/8);
  c.state.settings.swap = Swap::always;
  c.submit(1, 8, 1);
  c.run();
  // The second prompt takes the pool; the first one's blocks are copied to the host part by the
  // same plan.
  Submit other = c.request(2, 12, 1);
  other.prompt.assign(12, 6);
  c.from_frontend(c.frontend, other);
  c.turn();
  const BlockPool& pool = c.worker("mixed0").store.pool;
  ASSERT_FALSE(c.last_plan(old).ops.empty());
  c.gone(old);
  EXPECT_EQ(pool.host_cached_blocks(), 0U);
  EXPECT_EQ(pool.host_free_blocks(), 8U);
  join("mixed0", Role::mixed, 2, 77, 4, 8);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::ok);
}

TEST_F(KeptPool, ASuspectDecodesAloneWhenItsWorkerIsBack) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.make_suspect(1, Stage::decode);
  c.find(1)->deaths.in[static_cast<std::size_t>(Stage::decode)] = c.state.settings.max_deaths - 2;
  c.find(1)->deaths.total = c.state.settings.max_deaths - 2;
  c.gone(old);
  EXPECT_EQ(c.deaths(1), c.state.settings.max_deaths - 1) << "the death counts";
  const LinkId link = join("mixed0", Role::mixed, 2, 77);
  c.turn();
  const StepPlan plan = first_plan(link);
  ASSERT_EQ(plan.add.size(), 1U);
  EXPECT_FALSE(plan.add[0].decode);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
}

TEST_F(KeptPool, ACancelledRequestGivesItsBlocksBackWhileItsWorkerIsAway) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.gone(old);
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  EXPECT_EQ(c.phase(1), Phase::ended);
  const BlockPool& pool = c.worker("mixed0").store.pool;
  EXPECT_EQ(pool.available_blocks(), pool.total());
}

TEST_F(KeptPool, ASilentWorkersRequestsGoElsewhereAndItsCacheStays) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  decode(old, 9, 3, 20);
  c.tick(c.state.settings.worker_timeout + 1);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  Hello hello = Cluster::hello_of("mixed0", 100, 1);
  hello.hello_id = 2;
  hello.allocation = 77;
  hello.leased = true;
  c.from_worker(old, hello);
  c.turn();
  AddSequence added;
  for (const StepPlan& plan : c.sent<StepPlan>(old)) {
    if (!plan.add.empty()) added = plan.add.back();
  }
  EXPECT_EQ(added.computed, 8U);
}

TEST_F(KeptPool, ABeamSearchBeginsAgain) {
  const LinkId old = join("mixed0", Role::mixed, 1, 77);
  Submit search = c.request(1, 9, 4);
  search.sampling.num_beams = 2;
  c.from_frontend(c.frontend, search);
  c.turn();
  c.gone(old);
  EXPECT_EQ(c.phase(1), Phase::waiting);
}

}  // namespace
}  // namespace baton::test
