// What lies in several pools comes together again: when, what is pulled where, and what a loss at
// any moment does.
#include "scheduler/plan/gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "scheduler/plan/elastic.h"
#include "scheduler/state/audit.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

/// A mixed worker with a pool of 3 blocks of 4 tokens, and one with more. Request 1 begins at the
/// first one.
class Gathering : public testing::Test {
 protected:
  Gathering() : c(settings(), /*prefix_cache=*/true) {}
  static Settings settings() {
    Settings settings;
    settings.elastic = true;
    return settings;
  }
  LinkId join(const std::string& name, std::uint32_t blocks) {
    const LinkId link = c.register_worker(name, Role::mixed);
    Hello hello = Cluster::hello_of(name, blocks);
    hello.reads_in_place = true;
    c.from_worker(link, hello);
    return link;
  }
  Store& store(WorkerIndex i) { return c.state.store(i); }
  void step() {
    c.turn();
    for (Worker& w : c.state.workers) {
      while (w.ready() && !w.compute.steps.empty()) c.answer(w.peer.link);
    }
  }
  std::vector<StoreIndex> stores() {
    std::vector<StoreIndex> found;
    for (const Extent& extent : c.source(1).extents) found.push_back(extent.store);
    return found;
  }
  /// Request 1 outgrows the small pool, in which its first 12 tokens stay, and decodes in the other
  /// one.
  void grow_over_both(std::uint32_t blocks = 12) {
    c.state.started = c.now;  // more workers may come: nothing is cut short
    links = {join("w0", 3)};
    c.submit(1, 10, 200);
    step();
    links.push_back(join("w1", blocks));
    for (int i = 0; i < 20 && stores().size() < 2; ++i) step();
    ASSERT_EQ(stores(), (std::vector<StoreIndex>{first, home}));
    c.turn();
  }
  std::deque<Pull>& pulls() { return c.pulls[links[home]]; }
  std::vector<std::string> audit() { return audit_state(c.state); }

  Cluster c;
  std::vector<LinkId> links;
  WorkerIndex first = 0;
  WorkerIndex home = 1;
};

TEST_F(Gathering, IsPulledWhileItDecodesAndGoesOnInOnePool) {
  grow_over_both();
  ASSERT_EQ(pulls().size(), 1U) << "its own worker has room";
  const Pull pull = pulls().front();
  EXPECT_EQ(pull.allocation, store(first).allocation());
  EXPECT_EQ(pull.from, c.source(1).extents[0].blocks);
  EXPECT_EQ(pull.to, c.source(1).gather->blocks);
  const std::size_t before = c.tokens_of(1);
  step();
  step();
  EXPECT_GE(c.tokens_of(1), before + 2) << "it decodes meanwhile";
  EXPECT_EQ(stores().size(), 2U);
  c.done_pull(links[home]);
  step();
  step();
  EXPECT_EQ(stores(), std::vector<StoreIndex>{home});
  EXPECT_GE(c.tokens_of(1), before + 3);
  const std::vector<StepPlan> plans = c.sent<StepPlan>(links[home]);
  const auto whole = std::find_if(plans.begin(), plans.end(), [](const StepPlan& plan) {
    return !plan.add.empty() && plan.add[0].before.empty();
  });
  ASSERT_NE(whole, plans.end()) << "its worker is told of one table";
  const std::vector<BlockId>& blocks = whole->add[0].blocks;
  ASSERT_GT(blocks.size(), pull.to.size());
  EXPECT_TRUE(std::equal(pull.to.begin(), pull.to.end(), blocks.begin()));
  EXPECT_EQ(c.state.counters.gathers, 1U);
  EXPECT_EQ(c.state.counters.gathered_blocks, pull.to.size());
  EXPECT_EQ(c.state.counters.growth_blocks_moved, 0U);
  EXPECT_EQ(c.state.counters.computed_tokens, 10U) << "nothing is computed again";
  EXPECT_FALSE(holds_for_others(c.state, first));
  EXPECT_EQ(c.source(1).remembered, 4U) << "what it had then is found by others from now on";
  std::vector<Token> tokens = c.find(1)->prompt;
  tokens.insert(tokens.end(), c.find(1)->generated.begin(), c.find(1)->generated.end());
  EXPECT_EQ(store(home).pool.match("", tokens, store(home).shape, 4).columns, 4U);
  EXPECT_TRUE(audit().empty());
}

TEST_F(Gathering, OffItStaysWhereItIs) {
  c.state.settings.elastic_gather = false;
  grow_over_both();
  for (int i = 0; i < 4; ++i) step();
  EXPECT_TRUE(pulls().empty());
  EXPECT_EQ(stores().size(), 2U);
}

/// Three blocks to be pulled, and what it grows by next.
TEST_F(Gathering, WithoutRoomItWaits) {
  grow_over_both(/*blocks=*/4);
  step();
  EXPECT_TRUE(pulls().empty());
  EXPECT_EQ(c.phase(1), Phase::decode);
}

TEST_F(Gathering, APullThatFailsIsTriedAgainAndNotForEver) {
  grow_over_both();
  std::size_t failed = 0;
  for (int i = 0; i < 8; ++i) {
    if (!pulls().empty()) c.fail_pull(links[home]), ++failed;
    EXPECT_TRUE(pulls().empty()) << "not at once";
    c.wait(kSecond / 4);
    c.turn();
  }
  EXPECT_EQ(failed, 3U);
  EXPECT_EQ(c.phase(1), Phase::decode) << "where it was";
  EXPECT_EQ(stores().size(), 2U);
  EXPECT_TRUE(audit().empty());
}

TEST_F(Gathering, TheLossOfThePoolThatIsReadLeavesNothing) {
  grow_over_both();
  ASSERT_EQ(pulls().size(), 1U);
  c.gone(links[first]);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.pool("w1").owned, 0U) << "what it was to be pulled into is nobody's";
  EXPECT_TRUE(audit().empty());
  c.done_pull(links[home]);
  EXPECT_TRUE(audit().empty());
}

/// Nobody knows yet what its process died of, or whether the pool will be kept.
TEST_F(Gathering, OutOfAKeptPoolWhoseWorkerIsAwayNothingIsPulled) {
  grow_over_both();
  ASSERT_EQ(pulls().size(), 1U);
  store(first).offer.leased = true;
  const Hello offer = store(first).offer;
  c.gone(links[first]);
  EXPECT_EQ(stores().size(), 2U) << "it reads on in the kept pool";
  c.fail_pull(links[home]);
  c.now += kSecond / 2;
  c.heartbeat(links[home]);
  c.turn();
  EXPECT_TRUE(pulls().empty());
  const LinkId link = c.register_worker("w0", Role::mixed, 2);
  Hello hello = Cluster::hello_of("w0", 3, 2);
  hello.allocation = offer.allocation;
  hello.leased = hello.reads_in_place = true;
  c.from_worker(link, hello);
  c.now += kSecond / 2;
  c.heartbeat(links[home]);
  c.turn();
  EXPECT_EQ(pulls().size(), 1U);
  EXPECT_TRUE(audit().empty());
}

TEST_F(Gathering, TheLossOfItsWorkerLeavesNothing) {
  grow_over_both();
  ASSERT_EQ(pulls().size(), 1U);
  c.gone(links[home]);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_TRUE(audit().empty());
  EXPECT_EQ(c.pool("w0").owned, 0U);
}

TEST_F(Gathering, WhoIsCancelledLeavesBlocksThatThePullStillWrites) {
  grow_over_both();
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  step();
  EXPECT_EQ(store(home).pool.fenced_blocks(), 3U);
  EXPECT_TRUE(audit().empty());
  c.done_pull(links[home]);
  EXPECT_EQ(store(home).pool.fenced_blocks(), 0U);
  EXPECT_TRUE(audit().empty());
}

/// A copy that is not what was computed: nobody knows which of the two is wrong.
TEST_F(Gathering, DamageMeansComputingAgain) {
  grow_over_both();
  const Pull pull = pulls().front();
  pulls().pop_front();
  c.from_worker(links[home], PullFailed{pull.term, pull.pull_id, "damaged", {pull.from[0]}});
  EXPECT_EQ(c.state.counters.damaged_blocks, 1U);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_TRUE(audit().empty());
}

TEST_F(Gathering, WhoseLastTokenIsOnItsWayEndsWhereItIs) {
  grow_over_both();
  Request& request = *c.state.request_of(c.source(1));
  request.sampling.max_tokens = static_cast<std::uint32_t>(request.generated.size()) + 2;
  c.answer(links[home]);  // of two that are in flight
  c.turn();
  ASSERT_EQ(c.source(1).decode_slot, kNobody);
  c.done_pull(links[home]);
  EXPECT_FALSE(c.source(1).gather);
  step();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_TRUE(audit().empty());
}

}  // namespace
}  // namespace baton::test
