// A front end's process ends, and another one goes on with its requests: who waits for whom, what a
// successor finds, and what its predecessor can still do.
#include <gtest/gtest.h>

#include "scheduler/apply/apply_handlers.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings waiting(TimeNs wait) {
  Settings settings;
  settings.successor_wait = wait;
  return settings;
}

class Successor : public testing::Test {
 protected:
  Successor() : Successor(waiting(10 * kSecond)) {}
  explicit Successor(const Settings& settings) : c(settings) {
    worker = c.ready_worker("mixed0", Role::mixed);
    c.frontend = come(0);
  }

  /// A process of the front end under test joins. Its incarnation is that of the cluster's own.
  LinkId come(std::uint32_t generation, std::vector<std::uint64_t> inherited = {},
              Incarnation incarnation = 1, const std::string& name = "frontend0") {
    const LinkId link = c.next_link++;
    c.from_frontend(link, hello(generation, std::move(inherited), incarnation, name));
    return link;
  }
  static FrontendHello hello(std::uint32_t generation, std::vector<std::uint64_t> inherited = {},
                             Incarnation incarnation = 1, const std::string& name = "frontend0") {
    FrontendHello hello;
    hello.build = "test";
    hello.name = name;
    hello.incarnation = incarnation;
    hello.pid = static_cast<std::int32_t>(100 + generation);
    hello.pid_start = 1;
    hello.has_successor = true;
    hello.generation = generation;
    hello.inherited = std::move(inherited);
    return hello;
  }
  void step() {
    c.turn();
    c.answer(worker);
  }
  void ask(LinkId link, std::uint64_t counter, std::uint32_t attempt, std::uint32_t next) {
    c.from_frontend(link, FrontendHeartbeat{c.state.epoch, {counter}, {attempt}, {next}});
  }
  const Frontend& entry() const { return c.state.frontends[0]; }
  void cancel_everything(LinkId link) {
    c.from_frontend(link, Cancel{{1, 1}});
    c.from_frontend(link, Finish{{1, 1}, 1, 1});
    c.from_frontend(link, Ack{{1, 1}});
    c.from_frontend(link, c.request(7, 4, 8));
    ask(link, 1, 5, 0);
    c.from_frontend(link, FrontendBye{1});
    c.gone(link);
  }

  Cluster c;
  LinkId worker = kNoLink;
};

class NoWait : public Successor {
 protected:
  NoWait() : Successor(waiting(0)) {}
};

TEST_F(Successor, RequestsGoOnWhileTheirFrontEndIsAway) {
  c.submit(1, 4, 20);
  step();
  const std::size_t told = c.tokens_of(1);
  c.gone(c.frontend);
  EXPECT_TRUE(entry().alive);
  EXPECT_FALSE(entry().reachable());
  EXPECT_TRUE(c.logged("frontend0: process ended; 1 requests go on and wait for its successor"));
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(c.find(1)->generated.size(), told + 5);

  const LinkId next = come(1, {1});
  EXPECT_TRUE(entry().reachable());
  EXPECT_EQ(c.told<FrontendWelcome>(next).size(), 1U);
  EXPECT_TRUE(c.logged("frontend0: its successor has taken over, pid 101, 1 requests"));
  c.tokens[1].resize(told);
  ask(next, 1, 1, static_cast<std::uint32_t>(told));
  EXPECT_EQ(c.tokens_of(1), told + 5) << "what came meanwhile, once";
  EXPECT_TRUE(c.told<Gone>(next).empty());
  EXPECT_EQ(entry().link, next);
}

TEST_F(Successor, AnEndThatNobodyHeardIsToldToTheSuccessor) {
  c.submit(1, 4, 3);
  c.gone(c.frontend);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::ended);
  c.terminals.clear();
  const LinkId next = come(1, {1});
  EXPECT_EQ(c.phase(1), Phase::ended) << "until it is acknowledged";
  ask(next, 1, 1, 0);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  c.from_frontend(next, Ack{{1, 1}});
  EXPECT_EQ(c.find(1), nullptr);
}

TEST_F(Successor, ItIsLostWhenNobodyComes) {
  c.submit(1, 4, 1000);
  step();
  c.gone(c.frontend);
  c.wait(9900 * kMillisecond);
  EXPECT_NE(c.find(1), nullptr);
  c.wait(200 * kMillisecond);
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_FALSE(entry().alive);
  EXPECT_TRUE(c.logged("no successor has come"));
  c.run();
  EXPECT_EQ(c.pool("mixed0").free, c.pool("mixed0").total);
  // One that comes too late has it computed again.
  const LinkId next = come(1, {1});
  ask(next, 1, 1, 1);
  ASSERT_EQ(c.told<Gone>(next).size(), 1U);
}

TEST_F(Successor, SilenceAloneDoesNotEndTheWait) {
  c.state.settings.frontend_timeout = kSecond;
  c.submit(1, 4, 20);
  c.gone(c.frontend);
  for (int i = 0; i < 50; ++i) {
    c.heartbeat(worker);
    c.tick(100 * kMillisecond);
  }
  EXPECT_NE(c.find(1), nullptr);
}

TEST_F(Successor, TimeInWhichTheSchedulerStoodStillDoesNotCount) {
  c.submit(1, 4, 20);
  c.gone(c.frontend);
  c.tick(30 * kSecond, /*gap=*/30 * kSecond);
  EXPECT_NE(c.find(1), nullptr);
}

TEST_F(NoWait, ItIsLostAtOnce) {
  c.submit(1, 4, 20);
  c.gone(c.frontend);
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_FALSE(entry().alive);
}

TEST_F(Successor, OneWithoutASuccessorIsLostAtOnce) {
  const LinkId other = c.join_frontend("frontend1", 2);
  Submit submit = c.request(1, 4, 20);
  submit.request.frontend = 2;
  c.from_frontend(other, submit);
  ASSERT_NE(c.find(1, 2), nullptr);
  c.gone(other);
  EXPECT_EQ(c.find(1, 2), nullptr);
}

TEST_F(Successor, GoodbyeEndsAllAtOnce) {
  c.submit(1, 4, 20);
  c.from_frontend(c.frontend, FrontendBye{1});
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_FALSE(entry().alive);
}

TEST_F(Successor, WhatHadLeftBeforeTheDeathIsStillHeard) {
  c.submit(1, 4, 20);
  c.submit(2, 4, 20);
  c.gone(c.frontend);
  c.submit(3, 4, 20);
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  EXPECT_EQ(c.phase(1), Phase::ended);
  EXPECT_EQ(c.phase(3), Phase::waiting);
  EXPECT_FALSE(entry().reachable()) << "that does not bring it back";
  const LinkId next = come(1, {2, 3});
  ask(next, 3, 1, 0);
  EXPECT_TRUE(c.told<Gone>(next).empty());
}

TEST_F(Successor, OneWithAnotherAttemptIsToldSo) {
  c.submit(1, 4, 20);
  Submit again = c.request(2, 4, 20);
  again.attempt = 3;
  c.from_frontend(c.frontend, again);
  const LinkId next = come(1, {1, 2});
  ask(next, 1, 2, 0);  // its journal is ahead: the Submit was lost
  EXPECT_EQ(c.find(1), nullptr);
  ask(next, 2, 1, 0);  // or behind
  ASSERT_EQ(c.told<Gone>(next).size(), 2U);
  EXPECT_EQ(c.told<Gone>(next)[1].counters, (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(c.find(2)->attempt, 3U) << "the successor's own attempts reach it, or pass it";
}

TEST_F(Successor, WhatIsCompleteAlreadyEndsAtOnce) {
  const LinkId next = come(1);
  Submit whole = c.request(1, 4, 2);
  whole.attempt = 2;
  whole.again = true;
  whole.generated = {kWord, kWord};
  c.from_frontend(next, whole);
  ASSERT_NE(c.terminal(1), nullptr);
  EXPECT_EQ(c.terminal(1)->reason,
            (std::vector<std::uint32_t>{static_cast<std::uint32_t>(FinishReason::length)}));
}

TEST_F(Successor, ASearchIsToldWhole) {
  Submit search = c.request(1, 4, 2);
  search.sampling.num_beams = 2;
  search.sampling.num_return_sequences = 2;
  c.from_frontend(c.frontend, search);
  c.gone(c.frontend);
  const LinkId next = come(1, {1});
  ask(next, 1, 1, 0);
  EXPECT_TRUE(c.told<Gone>(next).empty());
  EXPECT_EQ(c.tokens_of(1), 0U);
}

TEST_F(Successor, MayComeBeforeTheDeathIsKnown) {
  c.submit(1, 4, 20);
  step();
  const LinkId old = c.frontend;
  const LinkId next = come(1, {1});
  c.gone(old);
  EXPECT_TRUE(entry().reachable());
  EXPECT_EQ(entry().link, next);
  EXPECT_EQ(c.phase(1), Phase::decode);
  EXPECT_EQ(c.state.frontends.size(), 1U);
}

TEST_F(Successor, WhatItDidNotInheritIsCancelled) {
  c.submit(1, 4, 20);  // its Finish was lost
  c.submit(2, 4, 20);
  c.submit(3, 4, 2);  // ended, and nobody acknowledged it
  step();
  step();
  c.gone(c.frontend);
  step();
  c.terminals.clear();
  const LinkId next = come(1, {2});
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_NE(c.find(2), nullptr);
  EXPECT_EQ(c.find(3), nullptr);
  EXPECT_TRUE(c.terminals.empty());
  EXPECT_TRUE(c.logged("1 requests"));
  // The same counters may be used again: nothing of the old ones is left.
  c.from_frontend(next, c.request(1, 8, 20));
  EXPECT_EQ(c.find(1)->prompt.size(), 8U);
  // A repeated hello takes nothing away from what was submitted meanwhile.
  c.from_frontend(next, hello(1, {2}));
  EXPECT_NE(c.find(1), nullptr);
}

TEST_F(Successor, ALateHelloOfTheDeadIsNotASuccessor) {
  c.submit(1, 4, 20);
  c.gone(c.frontend);
  const LinkId late = come(0);  // over another link, that it had made before
  EXPECT_FALSE(entry().reachable());
  EXPECT_NE(c.find(1), nullptr);
  c.from_frontend(late, hello(0));
  EXPECT_FALSE(entry().reachable());
  come(1, {1});
  EXPECT_TRUE(entry().reachable());
}

TEST_F(Successor, APredecessorThatWakesUpChangesNothing) {
  c.submit(1, 4, 20);
  step();
  const LinkId old = c.frontend;
  const LinkId next = come(1, {1});
  const std::uint64_t cancelled = c.state.counters.cancelled;
  cancel_everything(old);
  EXPECT_EQ(c.phase(1), Phase::decode);
  EXPECT_EQ(c.find(1)->attempt, 1U);
  EXPECT_EQ(c.find(7), nullptr);
  EXPECT_EQ(c.state.counters.cancelled, cancelled);
  EXPECT_EQ(c.told<FrontendUnknown>(old).size(), 5U);
  // It says hello then, and is sent away.
  c.from_frontend(old, hello(0));
  EXPECT_EQ(c.told<Refused>(old).size(), 1U);
  EXPECT_EQ(entry().link, next);
  EXPECT_EQ(entry().identity.generation, 1U);
  c.from_frontend(next, Cancel{{1, 1}});
  EXPECT_EQ(c.phase(1), Phase::ended);
}

TEST_F(Successor, APredecessorThatJoinedANewSchedulerFirstIsReplacedThere) {
  // It has woken up, submits everything again, and something of its own.
  c.submit(1, 4, 20);
  c.submit(5, 4, 20);
  step();
  const LinkId next = come(1, {1});
  EXPECT_NE(c.find(1), nullptr);
  EXPECT_EQ(c.find(5), nullptr) << "a counter that the successor gives to another request";
  c.from_frontend(next, c.request(5, 8, 20));
  EXPECT_EQ(c.find(5)->prompt.size(), 8U);
}

TEST_F(Successor, ASuccessorHasASuccessor) {
  c.submit(1, 4, 20);
  step();
  c.gone(c.frontend);
  const LinkId second = come(1, {1});
  c.from_frontend(second, c.request(2, 4, 20));
  c.gone(second);
  EXPECT_FALSE(entry().reachable());
  come(2, {1, 2});
  EXPECT_NE(c.find(1), nullptr);
  EXPECT_NE(c.find(2), nullptr);
  c.from_frontend(second, hello(1));
  EXPECT_EQ(c.told<Refused>(second).size(), 1U);
}

TEST_F(Successor, TheNamesNextIncarnationEndsTheWait) {
  c.submit(1, 4, 20);
  c.gone(c.frontend);
  come(0, {}, 9, "frontend1");
  EXPECT_NE(c.find(1), nullptr);
  come(0, {}, 8, "frontend0");
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_FALSE(entry().alive);
}

TEST_F(Successor, AGroupOfStaticBatchingIsNotHeldUpByAnOrphan) {
  c.state.settings.batching = Batching::static_batch;
  c.state.settings.static_batch_size = 2;
  c.submit(1, 4, 50);
  c.submit(2, 4, 50);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  result.tokens[0] = kStop;  // one ends early, and waits for the other one
  c.from_worker(worker, result);
  EXPECT_TRUE(c.terminals.empty());
  const std::uint64_t ended = c.phase(1) == Phase::ended ? 1 : 2;
  const LinkId next = come(1, {ended});
  EXPECT_EQ(c.find(3 - ended), nullptr);
  ask(next, ended, 1, 1);
  EXPECT_EQ(c.code(ended), ErrorCode::ok);
}

}  // namespace
}  // namespace baton::test
