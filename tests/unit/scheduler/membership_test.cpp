// Joining, terms, incarnations, geometry, leaving.
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

TEST(Terms, EveryHelloIdGetsItsOwnTermAndARepeatTheSame) {
  Cluster c;
  const LinkId link = c.register_worker("mixed0", Role::mixed);
  EXPECT_EQ(c.sent<Registered>(link).size(), 1U);
  Hello hello = Cluster::hello_of("mixed0", 10);
  c.from_worker(link, hello);
  c.from_worker(link, hello);  // the Welcome was lost
  ASSERT_EQ(c.sent<Welcome>(link).size(), 2U);
  const Term first = c.sent<Welcome>(link)[0].term;
  EXPECT_EQ(c.sent<Welcome>(link)[1].term, first);
  EXPECT_GT(first, c.state.epoch);
  hello.hello_id = 2;
  c.from_worker(link, hello);
  EXPECT_GT(c.sent<Welcome>(link)[2].term, first);
}

TEST(Terms, ANewTermStartsEmpty) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.turn();
  Hello hello = Cluster::hello_of("mixed0", 100);
  hello.hello_id = 2;
  c.from_worker(link, hello);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.pool("mixed0").free, 100U);
  c.turn();
  EXPECT_EQ(c.last_plan(link).term, c.worker("mixed0").peer.term);
  EXPECT_EQ(c.sent<StepPlan>(link)[2].step, 1U);
}

TEST(Terms, BlocksThatAnotherWorkerStillReadsStayFenced) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 50);
  c.turn();
  c.answer(prefill);
  c.turn();
  Hello hello = Cluster::hello_of("prefill0", 100);
  hello.hello_id = 2;
  c.from_worker(prefill, hello);
  EXPECT_EQ(c.pool("prefill0").fenced, 2U);
  c.done_pull(decode);
  EXPECT_EQ(c.pool("prefill0").fenced, 0U);
  EXPECT_EQ(c.phase(1), Phase::decode);
}

TEST(Terms, AResultOfAnEndedTermIsRefused) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.turn();
  const StepResult stale = c.result_of(c.worker("mixed0"));
  Hello hello = Cluster::hello_of("mixed0", 100);
  hello.hello_id = 2;
  c.from_worker(link, hello);
  c.turn();
  c.from_worker(link, stale);
  EXPECT_EQ(c.tokens_of(1), 0U);
  EXPECT_EQ(c.sent<Fenced>(link).size(), 1U);
  EXPECT_TRUE(c.worker("mixed0").ready());
}

TEST(Terms, AResultOutOfOrderEndsTheTerm) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  result.step = 2;
  c.from_worker(link, result);
  EXPECT_FALSE(c.worker("mixed0").ready());
  EXPECT_EQ(c.sent<Fenced>(link).size(), 1U);
}

TEST(Terms, AResultThatLacksATokenEndsTheTerm) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  result.sequences.clear();
  result.tokens.clear();
  c.from_worker(link, result);
  EXPECT_FALSE(c.worker("mixed0").ready());
}

TEST(Terms, AFailedRowEndsItsRequestOnly) {
  Settings settings;
  settings.prompt_chunk = 4;
  Cluster c(settings);
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 5);
  c.submit(2, 8, 5);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));  // a chunk: nothing is sampled
  result.failed.push_back({c.find(1)->source, "token 99 is outside the vocabulary"});
  c.from_worker(link, result);
  EXPECT_EQ(c.code(1), ErrorCode::internal);
  EXPECT_EQ(c.terminal(1)->message, "token 99 is outside the vocabulary");
  EXPECT_TRUE(c.worker("mixed0").ready());
  c.run();
  EXPECT_EQ(c.tokens_of(2), 5U);
}

TEST(Terms, AnUnknownLinkIsToldWhichTermIsOver) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  WorkerHeartbeat beat;
  beat.term = c.worker("mixed0").peer.term;
  beat.incarnation = 1;
  c.from_worker(77, beat);
  ASSERT_EQ(c.sent<Fenced>(77).size(), 1U);
  EXPECT_EQ(c.sent<Fenced>(77)[0].term, beat.term);
}

TEST(Terms, ANewLinkOfTheSameProcessTakesOverAfterRegister) {
  Cluster c;
  const LinkId old = c.ready_worker("mixed0", Role::mixed);
  const LinkId fresh = c.register_worker("mixed0", Role::mixed);
  EXPECT_EQ(c.sent<Registered>(fresh).size(), 1U);
  EXPECT_FALSE(c.worker("mixed0").ready());
  Hello hello = Cluster::hello_of("mixed0", 100);
  hello.hello_id = 2;
  c.from_worker(fresh, hello);
  EXPECT_TRUE(c.worker("mixed0").ready());
  c.gone(old);
  EXPECT_TRUE(c.worker("mixed0").ready());
}

// ---------------------------------------------------------------- incarnations

TEST(Incarnations, TheOlderOneIsSuperseded) {
  Cluster c;
  const LinkId old = c.ready_worker("mixed0", Role::mixed, 100, 5);
  const LinkId young = c.ready_worker("mixed0", Role::mixed, 100, 6);
  ASSERT_EQ(c.sent<Superseded>(old).size(), 1U);
  EXPECT_EQ(c.sent<Superseded>(old)[0].incarnation, 5U);
  EXPECT_TRUE(c.worker("mixed0").ready());
  EXPECT_EQ(c.worker("mixed0").peer.link, young);
  const LinkId again = c.register_worker("mixed0", Role::mixed, 5);
  EXPECT_EQ(c.sent<Superseded>(again).size(), 1U);
  EXPECT_EQ(c.worker("mixed0").peer.link, young);
}

TEST(Incarnations, TheSuccessorMayAllocateWhenImportersHaveClosed) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 3);
  c.run();
  const AllocationId old = c.worker("prefill0").store.allocation();
  c.gone(prefill);
  ASSERT_EQ(c.sent<Close>(decode).size(), 1U);
  EXPECT_EQ(c.sent<Close>(decode)[0].allocation, old);
  const LinkId next = c.register_worker("prefill0", Role::prefill, 2);
  EXPECT_TRUE(c.sent<Registered>(next).empty());
  c.from_worker(decode, Closed{old});
  EXPECT_EQ(c.sent<Registered>(next).size(), 1U);
}

// A Pull of its old term may still be on its way to it, and would map the pool again.
TEST(Incarnations, AnImporterOutOfTermIsBelievedToHaveClosedOnlyAfterItsHello) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 3);
  c.run();
  const AllocationId old = c.worker("prefill0").store.allocation();
  c.event(SendFailed{decode});
  c.gone(prefill);
  const LinkId next = c.register_worker("prefill0", Role::prefill, 2);
  c.from_worker(decode, Closed{old});
  EXPECT_TRUE(c.sent<Registered>(next).empty());
  Hello hello = Cluster::hello_of("decode0", 100);
  hello.hello_id = 2;
  c.from_worker(decode, hello);
  EXPECT_TRUE(c.worker("decode0").ready());
  const std::size_t told = c.sent<Close>(decode).size();
  c.wait(2 * kSecond);
  EXPECT_GT(c.sent<Close>(decode).size(), told);
  c.from_worker(decode, Closed{old});
  EXPECT_EQ(c.sent<Registered>(next).size(), 1U);
}

TEST(Incarnations, AnImporterThatNeverClosesIsNamedAfterATimeOut) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 3);
  c.run();
  c.gone(prefill);
  const LinkId next = c.register_worker("prefill0", Role::prefill, 2);
  c.wait(11 * kSecond);
  EXPECT_TRUE(c.sent<Registered>(next).empty());
  c.wait(2 * kSecond);
  EXPECT_EQ(c.sent<Registered>(next).size(), 1U);
  EXPECT_TRUE(c.logged("still mapped by decode0"));
}

TEST(Incarnations, ALostCloseIsRepeated) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 3);
  c.run();
  c.gone(prefill);
  c.wait(2 * kSecond);
  EXPECT_GE(c.sent<Close>(decode).size(), 2U);
}

// ---------------------------------------------------------------- geometry

TEST(Geometry, APoolThatDiffersIsRefusedAndTheDifferenceNamed) {
  struct Case {
    const char* text;
    void (*change)(Hello&);
  };
  const Case cases[] = {
      {"model fingerprint 8 against 7", [](Hello& h) { h.model_fingerprint = 8; }},
      {"KV dtype 3 against 0", [](Hello& h) { h.dtype = 3; }},
      {"layers 2 against 0", [](Hello& h) { h.layers = 2; }},
      {"KV heads 2 against 0", [](Hello& h) { h.kv_heads = 2; }},
      {"head_dim 64 against 0", [](Hello& h) { h.head_dim = 64; }},
      {"tokens_per_block 16 against 4", [](Hello& h) { h.tokens_per_block = 16; }},
      {"block bytes 512 against 0", [](Hello& h) { h.block_bytes = 512; }},
  };
  for (const Case& test : cases) {
    Cluster c;
    c.ready_worker("prefill0", Role::prefill);
    const LinkId link = c.register_worker("decode0", Role::decode);
    Hello hello = Cluster::hello_of("decode0", 50);
    test.change(hello);
    c.from_worker(link, hello);
    ASSERT_EQ(c.sent<Refused>(link).size(), 1U) << test.text;
    const std::string reason = c.sent<Refused>(link)[0].reason;
    EXPECT_NE(reason.find(test.text), std::string::npos) << reason;
    EXPECT_NE(reason.find("prefill0"), std::string::npos) << reason;
    EXPECT_FALSE(c.worker("decode0").ready());
  }
}

TEST(Geometry, PoolsThatRanksHaveCutByHeadsAreOfOneModel) {
  for (const bool cut : {true, false}) {
    Cluster c;
    c.ready_worker("prefill0", Role::prefill);
    const LinkId link = c.register_worker("decode0", Role::decode);
    Hello hello = Cluster::hello_of("decode0", 50);
    hello.kv_heads = 2;
    hello.block_bytes = 512;
    hello.ranks = {{"GPU-1", "a"}, {"GPU-2", cut ? "b" : "a"}};
    c.from_worker(link, hello);
    EXPECT_EQ(c.worker("decode0").ready(), cut);
  }
}

TEST(Geometry, AnotherNumberOfBlocksIsFine) {
  Cluster c;
  c.ready_worker("prefill0", Role::prefill, 10);
  c.ready_worker("decode0", Role::decode, 99);
  EXPECT_TRUE(c.worker("decode0").ready());
}

TEST(Geometry, NonsenseIsRefused) {
  for (const auto change :
       {+[](Hello& h) { h.blocks = 0; }, +[](Hello& h) { h.blocks = ~0U; },
        +[](Hello& h) { h.tokens_per_block = 0; }, +[](Hello& h) { h.max_context = 0; }}) {
    Cluster c;
    const LinkId link = c.register_worker("mixed0", Role::mixed);
    Hello hello = Cluster::hello_of("mixed0", 10);
    change(hello);
    c.from_worker(link, hello);
    EXPECT_EQ(c.sent<Refused>(link).size(), 1U);
    EXPECT_FALSE(c.worker("mixed0").ready());
  }
}

TEST(Geometry, AnotherProtocolIsRefused) {
  Cluster c;
  Register m;
  m.protocol = kProtocolVersion + 1;
  m.name = "mixed0";
  c.from_worker(50, m);
  EXPECT_EQ(c.sent<Refused>(50).size(), 1U);
  EXPECT_TRUE(c.state.workers.empty());
}

TEST(Geometry, ADifferentBuildIsLoggedAndServed) {
  Cluster c;
  Register m;
  m.build = "other";
  m.name = "mixed0";
  m.incarnation = 1;
  c.from_worker(50, m);
  EXPECT_TRUE(c.logged("differs"));
  EXPECT_EQ(c.sent<Registered>(50).size(), 1U);
}

// ---------------------------------------------------------------- leaving

TEST(Drain, ADrainingWorkerGetsNothingNewAndFinishesWhatItCan) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 4);
  c.turn();
  c.heartbeat(first, /*draining=*/true);
  c.submit(2, 8, 4);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 4U);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.tick();
  EXPECT_EQ(c.sent<Leave>(first).size(), 1U);
}

TEST(Drain, AfterItsBoundItHandsItsSequencesOver) {
  Settings settings;
  settings.drain = kSecond;
  Cluster c(settings);
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 400);
  c.turn();
  c.answer(first);
  c.turn();
  c.heartbeat(first, true);
  c.tick(500 * kMillisecond);
  EXPECT_EQ(c.phase(1), Phase::decode);
  c.heartbeat(first, true);
  c.tick(600 * kMillisecond);
  EXPECT_EQ(c.phase(1), Phase::preempting);
  const LinkId second = c.ready_worker("mixed1", Role::mixed);
  while (!c.worker("mixed0").compute.steps.empty()) c.answer(first);
  c.turn();
  c.answer(first);  // the drop
  c.tick();
  EXPECT_EQ(c.sent<Leave>(first).size(), 1U);
  EXPECT_FALSE(c.sent<StepPlan>(second).empty());
  EXPECT_EQ(c.deaths(1), 0U);
}

TEST(Drain, LeaveWaitsUntilImportersHaveClosed) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 3);
  c.run();
  c.heartbeat(prefill, true);
  c.tick();
  EXPECT_TRUE(c.sent<Leave>(prefill).empty());
  ASSERT_EQ(c.sent<Close>(decode).size(), 1U);
  c.from_worker(decode, Closed{c.worker("prefill0").store.allocation()});
  c.tick();
  EXPECT_EQ(c.sent<Leave>(prefill).size(), 1U);
  c.tick();
  EXPECT_EQ(c.sent<Leave>(prefill).size(), 1U);
}

TEST(Drain, AnOperatorsDrainDoesNotEndTheProcessAndCanBeUndone) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.event(SetDraining{"mixed0", true});
  c.submit(1, 8, 3);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.wait(10 * kSecond);
  EXPECT_TRUE(c.sent<Leave>(link).empty());
  c.event(SetDraining{"mixed0", false});
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
}

}  // namespace
}  // namespace baton::test
