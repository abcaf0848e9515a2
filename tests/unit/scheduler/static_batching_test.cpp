// The baseline: groups with one shared set of limits.
#include "scheduler/plan/static_batching.h"
#include "scheduler/apply/requests.h"

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

// ---------------------------------------------------------------- packages (the tutorial's static
// server)

Settings packages_of(std::uint32_t beams) {
  Settings settings = groups_of(beams);
  settings.static_same_config = true;
  return settings;
}

TEST(Packages, OnlyRequestsWithTheHeadsConfigurationJoinIt) {
  Cluster c(packages_of(3));
  for (std::uint64_t i = 1; i <= 6; ++i) {
    Submit m = c.request(i, 4, 5);
    if (i % 2 == 0) m.sampling.temperature = 0.5F;
    m.sampling.seed = i;  // each row has its own
    c.from_frontend(c.frontend, m);
  }
  c.ready_worker("mixed0", Role::mixed);
  c.turn();
  for (std::uint64_t i = 1; i <= 6; ++i) EXPECT_EQ(c.find(i)->grouped, i % 2 == 1) << i;
  c.run();
  EXPECT_EQ(c.terminals.size(), 6U);  // the other three are the next package, full as well
  EXPECT_EQ(c.terminals.back().counter % 2, 0U);
}

TEST(Packages, AnyDifferenceSeparates) {
  const auto separate = [](auto change) {
    Cluster c(packages_of(2));
    c.submit(1, 4, 5);
    Submit m = c.request(2, 4, 5);
    change(m.sampling);
    c.from_frontend(c.frontend, m);
    c.wait(3100 * kMillisecond);
    c.turn();
    return c.find(1)->grouped && !c.find(2)->grouped;
  };
  EXPECT_FALSE(separate([](SamplingParams&) {}));
  EXPECT_FALSE(separate([](SamplingParams& s) { s.seed = 77; }));
  EXPECT_TRUE(separate([](SamplingParams& s) { s.top_k = 5; }));
  EXPECT_TRUE(separate([](SamplingParams& s) { s.max_tokens = 6; }));
  EXPECT_TRUE(separate([](SamplingParams& s) { s.num_beams = 2; }));
  EXPECT_TRUE(separate([](SamplingParams& s) { s.repetition_penalty = 1.5F; }));
}

TEST(Packages, TheCapIsExactInBeams) {
  Cluster c(packages_of(8));
  for (std::uint64_t i = 1; i <= 4; ++i) {
    Submit m = c.request(i, 4, 5);
    m.sampling.num_beams = 3;
    c.from_frontend(c.frontend, m);
  }
  c.turn();  // two searches are six beams; a third one would be nine: full, without waiting
  EXPECT_TRUE(c.find(1)->grouped && c.find(2)->grouped);
  EXPECT_FALSE(c.find(3)->grouped);
  EXPECT_EQ(c.state.group.size(), 2U);
}

TEST(Packages, OneThatIsWiderThanThePackageRunsAlone) {
  Cluster c(packages_of(2));
  Submit wide = c.request(1, 4, 5);
  wide.sampling.num_beams = 4;
  c.from_frontend(c.frontend, wide);
  c.submit(2, 4, 5);
  c.turn();
  EXPECT_EQ(c.state.group.size(), 1U);
  EXPECT_TRUE(c.find(1)->grouped);
}

TEST(Packages, APartPackageStartsAfterTheIntervalWhateverElseWaits) {
  Cluster c(packages_of(4));
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 5);
  c.wait(kSecond);
  for (std::uint64_t i = 2; i <= 9; ++i)
    c.submit(i, 4, 20);  // others: a full package, behind the head
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.wait(2100 * kMillisecond);
  c.turn();
  EXPECT_EQ(c.state.group.size(), 1U);
  c.run();
  EXPECT_EQ(c.terminals.size(), 9U);
}

}  // namespace
}  // namespace baton::test
