// The worker's protocol, one behaviour a test: the end of a term, pulls and mappings.
#include <gtest/gtest.h>

#include "tests/unit/workers/core_driver.h"
#include "workers/protocol/worker_core.h"

namespace baton::test {
namespace {

using State = WorkerCore::State;

// ---------------------------------------------------------------- the end of a term

TEST(TermEnd, AGapWaitsForStepAndPullsAndSaysHelloAnew) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.add = {sequence(8, {10, 11}, {2})};
  one.rows = {{8, 2, LogitsWanted::last, true}};
  d.get(one);
  for (PullId t = 1; t <= 4; ++t) d.get(pull(t, 900));
  ASSERT_EQ(d.pulls.size(), 2U);
  const std::uint64_t before = d.last<Hello>().hello_id;
  d.get(plan(3));
  EXPECT_EQ(d.core.state(), State::ending);
  EXPECT_EQ(d.core.term(), 0U);
  d.sent.clear();
  d.finish({44});
  d.pulled();
  EXPECT_EQ(d.count<Hello>(), 0);
  EXPECT_EQ(d.core.sequences().size(), 1U);
  d.pulled();
  ASSERT_EQ(d.count<Hello>(), 1);
  EXPECT_GT(d.last<Hello>().hello_id, before);
  EXPECT_EQ(d.count<StepResult>() + d.count<PullDone>(), 0);  // of the old term: not sent
  EXPECT_TRUE(d.pulls.empty());                               // nor were the waiting ones begun
  EXPECT_EQ(d.core.sequences().size(), 0U);
  d.get(Welcome{kEpoch, kTerm + 1, d.last<Hello>().hello_id});
  d.get(plan(1, kTerm + 1));
  EXPECT_EQ(d.last<StepResult>().term, kTerm + 1);
  EXPECT_EQ(d.last<StepResult>().step, 1U);
}

TEST(TermEnd, StaleMessagesAreDroppedSilently) {
  CoreDriver d;
  d.join();
  d.get(plan(9, kTerm - 1));
  d.get(pull(1, 900, kTerm - 1));
  d.get(AuditTables{kTerm - 1});
  d.get(PrepareGrammar{kTerm - 1, 1, GrammarKind::regex, "a", false});
  d.get(Fenced{kEpoch, kTerm - 1});
  d.get(Registered{kEpoch, kMe});
  d.get(Welcome{kEpoch, kTerm, 1});  // the repeat of our own
  EXPECT_EQ(d.core.term(), kTerm);
  EXPECT_TRUE(d.sent.empty());
  EXPECT_TRUE(d.pulls.empty());
  EXPECT_TRUE(d.grammars.empty());
  d.get(PrepareGrammar{kTerm, 1, GrammarKind::regex, "b", false});
  EXPECT_EQ(d.grammars, std::vector<std::string>{"b"});
  d.get(PrepareGrammar{kTerm, 1, GrammarKind::regex,
                       std::string(SamplingParams::kMaxGrammarBytes + 1, 'b'), false});
  EXPECT_EQ(d.grammars.size(), 1U);
  d.grammar_state(1, true);
  EXPECT_EQ(d.last<GrammarState>().key, 1U);
  EXPECT_TRUE(d.last<GrammarState>().ready);
  EXPECT_EQ(d.last<GrammarState>().term, kTerm);
  d.get(Fenced{kEpoch, kTerm});
  d.grammar_state(1, false);
  EXPECT_EQ(d.count<GrammarState>(), 1) << "out of term nobody cares";
}

TEST(TermEnd, FencedEndsIt) {
  CoreDriver d;
  d.join();
  d.get(Fenced{kEpoch, kTerm});
  EXPECT_EQ(d.count<Hello>(), 1);
  EXPECT_EQ(d.count<Register>(), 0);
}

TEST(TermEnd, AnotherEpochRegistersFirst) {
  const auto messages = {ToWorker(Fenced{kEpoch + 1, kTerm}), ToWorker(Welcome{kEpoch + 1, 99, 1}),
                         ToWorker(Registered{kEpoch + 1, kMe}), ToWorker(Fenced{kEpoch + 1, 0})};
  for (const ToWorker& m : messages) {
    CoreDriver d;
    d.join();
    StepPlan one = plan(1);
    one.ops = {{1, 2}};
    d.get(one);
    std::visit([&](auto copy) { d.get(copy); }, m);
    EXPECT_EQ(d.core.state(), State::ending);
    EXPECT_EQ(d.count<Register>(), 0);
    d.finish({});
    EXPECT_EQ(d.count<Register>(), 1);
    EXPECT_EQ(d.count<Hello>(), 0);
    d.get(Registered{kEpoch + 1, kMe});
    EXPECT_EQ(d.count<Hello>(), 1);
    EXPECT_EQ(d.pools_asked, 1);
  }
}

TEST(TermEnd, AnotherEpochWhileEndingOrGreeting) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.ops = {{1, 2}};
  d.get(one);
  d.get(Fenced{kEpoch, kTerm});
  d.get(Fenced{kEpoch + 1, kTerm});
  d.finish({});
  EXPECT_EQ(d.count<Register>(), 1);
  d.get(Registered{kEpoch + 1, kMe});
  d.get(Fenced{kEpoch + 2, 0});
  EXPECT_EQ(d.count<Register>(), 2);
}

TEST(TermEnd, ALostResultEndsIt) {
  CoreDriver d;
  d.join();
  d.send_failed();
  EXPECT_EQ(d.count<Hello>(), 1);
  d.send_failed();  // out of term: nothing to lose
  EXPECT_EQ(d.count<Hello>(), 1);
}

TEST(TermEnd, ViolationsOfAYoungTermAreAnsweredSlowly) {
  CoreDriver d;
  d.join();
  StepPlan bad = plan(1);
  bad.drop = {123};
  d.get(bad);
  ASSERT_EQ(d.errors.size(), 1U);
  EXPECT_NE(d.errors[0].find("unknown sequence 123"), std::string::npos);
  EXPECT_EQ(d.count<Hello>(), 0);
  d.wait(600 * kMillisecond);
  EXPECT_GE(d.count<Hello>(), 1);
}

TEST(TermEnd, TooManyPlansAtOnce) {
  WorkerCoreOptions options;
  options.max_plans = 2;
  CoreDriver d(options);
  d.join();
  for (StepId s = 1; s <= 3; ++s) {
    StepPlan p = plan(s);
    p.ops = {{1, 2}};
    d.get(p);
    EXPECT_EQ(d.core.state(), s < 3 ? State::in_term : State::ending);
  }
}

// ---------------------------------------------------------------- pulls

TEST(Pulls, EachEndsInOneAnswer) {
  CoreDriver d;
  d.join();
  for (PullId t = 1; t <= 3; ++t) d.get(pull(t, 900));
  d.wait(300 * kMillisecond);
  EXPECT_EQ(d.last<WorkerHeartbeat>().pulls_received, 3U);
  d.pulled();
  EXPECT_EQ(d.last<PullDone>().pull_id, 1U);
  d.pulled("gone");
  EXPECT_EQ(d.last<PullFailed>().pull_id, 2U);
  EXPECT_EQ(d.last<PullFailed>().reason, "gone");
  d.pulled();
  EXPECT_EQ(d.last<PullDone>().pull_id, 3U);
  d.wait(300 * kMillisecond);
  EXPECT_EQ(d.last<WorkerHeartbeat>().pulls_done, 3U);
}

TEST(Pulls, ImpossibleOnesFailAtOnce) {
  CoreDriver d;
  d.join();
  Pull p = pull(1, 900);
  p.from = {10, 1};
  d.get(p);
  EXPECT_NE(d.last<PullFailed>().reason.find("source block 10"), std::string::npos);
  p = pull(2, 900);
  p.to = {100, 1};
  d.get(p);
  EXPECT_NE(d.last<PullFailed>().reason.find("target block 100"), std::string::npos);
  p = pull(3, 900);
  p.to = {1};
  d.get(p);
  EXPECT_EQ(d.count<PullFailed>(), 3);
  EXPECT_TRUE(d.pulls.empty());
}

TEST(Pulls, ReadBothPartsAndWriteToTheDeviceAlone) {
  CoreDriver d;
  Hello own = pool(100);
  own.host_blocks = 50;
  d.join(own);
  Pull p = pull(1, 900);
  p.exporter_host_blocks = 5;
  p.from = {9, 14};
  d.get(p);
  EXPECT_EQ(d.pulls.size(), 1U);
  p.pull_id = 2;
  p.from = {9, 15};
  d.get(p);
  EXPECT_NE(d.last<PullFailed>().reason.find("source block 15 of a pool of 10 and 5 on the host"),
            std::string::npos);
  p.pull_id = 3;
  p.from = {9, 14};
  p.to = {1, 100};  // in the own host part
  d.get(p);
  EXPECT_NE(d.last<PullFailed>().reason.find("target block 100"), std::string::npos);
}

TEST(Pulls, TheyAreBounded) {
  WorkerCoreOptions options;
  options.max_open_pulls = 3;
  CoreDriver d(options);
  d.join();
  for (PullId t = 1; t <= 4; ++t) d.get(pull(t, 900));
  EXPECT_EQ(d.count<PullFailed>(), 1);
  EXPECT_EQ(d.last<PullFailed>().pull_id, 4U);
}

TEST(Pulls, APullNamedTwiceEndsTheTerm) {
  CoreDriver d;
  d.join();
  d.get(pull(1, 900));
  d.get(pull(1, 900));
  EXPECT_EQ(d.core.state(), State::ending);
}

TEST(Pulls, CloseWaitsForThem) {
  CoreDriver d;
  d.join();
  d.get(pull(1, 900));
  d.get(Close{900});
  EXPECT_TRUE(d.closes.empty());
  d.get(pull(2, 900));  // too late
  EXPECT_EQ(d.last<PullFailed>().pull_id, 2U);
  d.pulled();
  EXPECT_EQ(d.closes, (std::vector<AllocationId>{900}));
  EXPECT_EQ(d.count<Closed>(), 0);
  d.closed(900);
  EXPECT_EQ(d.last<Closed>().allocation, 900U);
  d.get(Close{900});
  EXPECT_EQ(d.count<Closed>(), 2);  // asked again: answered again
}

TEST(Pulls, CloseOfAnUnknownPoolIsAnsweredAtOnceInEveryState) {
  CoreDriver d;
  d.start();
  d.get(Close{900});
  EXPECT_EQ(d.last<Closed>().allocation, 900U);
}

TEST(Pulls, AMappingIsClosedThoughItsTermEnded) {
  CoreDriver d;
  d.join();
  for (PullId t = 1; t <= 4; ++t) d.get(pull(t, 900));
  d.get(Close{900});
  d.get(Fenced{kEpoch, kTerm});
  d.pulled();
  EXPECT_TRUE(d.closes.empty());
  d.pulled();
  EXPECT_EQ(d.closes.size(), 1U);
  EXPECT_EQ(d.count<Hello>(), 1);
}

TEST(Pulls, ADeadExportersPoolIsClosedAfterItsPulls) {
  CoreDriver d;
  d.join();
  d.get(pull(1, 900));
  d.get(pull(2, 901));
  d.exporter_gone(900);
  d.exporter_gone(900);
  EXPECT_TRUE(d.closes.empty());
  d.pulled();
  EXPECT_EQ(d.count<PullDone>(), 1);  // what was mapped stays valid
  EXPECT_EQ(d.closes, (std::vector<AllocationId>{900}));
  d.closed(900);
  EXPECT_EQ(d.last<Closed>().allocation, 900U);
  d.exporter_gone(902);  // never heard of
  EXPECT_EQ(d.closes.size(), 1U);
}

}  // namespace
}  // namespace baton::test
