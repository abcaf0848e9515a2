// The baseline: groups with one shared set of limits.
#include "scheduler/static_batching.h"

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings groups_of(std::uint32_t n) {
  Settings settings;
  settings.batching = Batching::static_batch;
  settings.static_batch_size = n;
  settings.static_interval = 3 * kSecond;
  return settings;
}

TEST(StaticBatching, AFullGroupStartsAtOnce) {
  Cluster c(groups_of(2));
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.submit(2);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_EQ(c.phase(2), Phase::prefill);
}

TEST(StaticBatching, APartGroupStartsAfterTheInterval) {
  Cluster c(groups_of(4));
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1);
  c.wait(2900 * kMillisecond);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.wait(200 * kMillisecond);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
}

TEST(StaticBatching, TheNextGroupWaitsForTheWholeOfThisOne) {
  Cluster c(groups_of(2));
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  for (std::uint64_t i = 1; i <= 4; ++i) c.submit(i, 4, 5);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::waiting);
  c.answer(link);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::waiting);
  c.run();
  EXPECT_EQ(c.terminals.size(), 4U);
}

TEST(StaticBatching, MembersAreAnsweredTogether) {
  Cluster c(groups_of(2));
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 50);
  c.submit(2, 4, 50);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  result.tokens[0] = kStop;  // one ends early
  c.from_worker(link, result);
  EXPECT_TRUE(c.terminals.empty());
  c.from_frontend(c.frontend, Cancel{{1, c.find(1)->phase == Phase::ended ? 2ULL : 1ULL}});
  EXPECT_EQ(c.terminals.size(), 2U);
}

TEST(StaticBatching, LimitsAreSharedButNobodyGetsMoreThanItAskedFor) {
  Cluster c(groups_of(2));
  c.ready_worker("mixed0", Role::mixed);
  Submit small = c.request(1, 4, 2);
  Submit large = c.request(2, 4, 9);
  small.sampling.temperature = 0.1F;
  large.sampling.temperature = 0.9F;
  large.sampling.min_tokens = 3;
  c.from_frontend(c.frontend, small);
  c.from_frontend(c.frontend, large);
  c.turn();
  EXPECT_EQ(c.find(1)->sampling.max_tokens, 9U);
  EXPECT_EQ(c.find(1)->sampling.temperature, 0.9F);
  EXPECT_EQ(c.find(2)->sampling.min_tokens, 0U);
  c.run();
  EXPECT_EQ(c.state.counters.tokens, 18U);  // that is the waste it is there to show
  EXPECT_EQ(c.tokens_of(1), 2U);
  EXPECT_EQ(c.tokens_of(2), 9U);
  EXPECT_EQ(c.terminal(1)->n[0], 2U);
  EXPECT_EQ(c.terminal(1)->reason[0], static_cast<std::uint32_t>(FinishReason::length));
}

TEST(StaticBatching, AMemberThatHasAllItAskedForIsNoErrorAfterwards) {
  Cluster c(groups_of(2));
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 1);
  c.submit(2, 4, 9);
  c.turn();
  c.answer(link);
  end_request(c.state, *c.find(1), FinishReason::error, ErrorCode::kv_exhausted, "full", c.out);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.terminal(1)->n[0], 1U);
}

TEST(StaticBatching, MembersBehindALongQueueAreStillFound) {
  Cluster c(groups_of(2));
  c.submit(101, 4, 3);
  c.submit(102, 4, 3);
  c.turn();  // the group forms before anybody can run it
  for (std::uint64_t i = 1; i <= 30; ++i) {
    Submit older = c.request(i, 4, 3);
    older.arrival -= kSecond;
    older.again = true;
    c.from_frontend(c.frontend, older);
  }
  c.ready_worker("mixed0", Role::mixed);
  c.run();
  EXPECT_EQ(c.terminals.size(), 32U);
}

}  // namespace
}  // namespace baton::test
