// The worker's protocol, one behaviour a test: joining, steps, reports, leaving.
#include "workers/protocol/worker_core.h"

#include <gtest/gtest.h>

#include "tests/unit/workers/core_driver.h"

namespace baton::test {
namespace {

using State = WorkerCore::State;

// ---------------------------------------------------------------- joining

TEST(Joining, RegisterIsRepeatedUntilAnswered) {
  CoreDriver d;
  d.start();
  EXPECT_EQ(d.count<Register>(), 1);
  EXPECT_EQ(d.last<Register>().incarnation, kMe);
  d.wait(1100 * kMillisecond);
  EXPECT_EQ(d.count<Register>(), 3);
  EXPECT_EQ(d.count<WorkerHeartbeat>(), 0);
  EXPECT_EQ(d.pools_asked, 0);
}

TEST(Joining, HelloIsRepeatedWithTheSameIdUntilItsWelcome) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe});
  EXPECT_EQ(d.pools_asked, 1);
  EXPECT_EQ(d.core.state(), State::registered);
  d.pool_ready();
  const Hello first = d.last<Hello>();
  EXPECT_EQ(first.name, "w0");
  EXPECT_EQ(first.incarnation, kMe);
  d.wait(600 * kMillisecond);
  EXPECT_EQ(d.count<Hello>(), 2);
  EXPECT_EQ(d.last<Hello>().hello_id, first.hello_id);
  d.get(Welcome{kEpoch, kTerm, first.hello_id + 1});  // not ours
  EXPECT_EQ(d.core.state(), State::hello);
  d.get(Welcome{kEpoch, kTerm, first.hello_id});
  EXPECT_EQ(d.core.term(), kTerm);
  EXPECT_EQ(d.last<WorkerHeartbeat>().term, kTerm);
  d.sent.clear();
  d.wait(kSecond);
  EXPECT_EQ(d.count<Hello>(), 0);
}

TEST(Joining, HeartbeatsTellTheLoading) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe});
  d.core.loading(40);
  d.wait(600 * kMillisecond);
  EXPECT_EQ(d.count<WorkerHeartbeat>(), 2);
  EXPECT_EQ(d.last<WorkerHeartbeat>().loading_percent, 40U);
  EXPECT_EQ(d.last<WorkerHeartbeat>().term, 0U);
}

TEST(Joining, ASecondRegisteredAllocatesNoSecondPool) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe});
  d.get(Registered{kEpoch, kMe});
  EXPECT_EQ(d.pools_asked, 1);
  d.get(Registered{kEpoch + 1, kMe});  // a new scheduler while loading
  EXPECT_EQ(d.core.state(), State::registering);
  d.get(Registered{kEpoch + 1, kMe});
  EXPECT_EQ(d.pools_asked, 1);
  d.pool_ready();
  EXPECT_EQ(d.count<Hello>(), 1);
}

TEST(Joining, ThePoolMayBeReadyWhileItRegistersAgain) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe});
  d.get(Fenced{kEpoch + 1, 0});
  d.pool_ready();
  EXPECT_EQ(d.count<Hello>(), 0);
  d.get(Registered{kEpoch + 1, kMe});
  EXPECT_EQ(d.count<Hello>(), 1);
}

TEST(Joining, AnUnansweredHelloRegistersAgain) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe});
  d.pool_ready();
  d.wait(5200 * kMillisecond);
  EXPECT_EQ(d.count<Register>(), 2);
  EXPECT_EQ(d.core.state(), State::registering);
}

TEST(Joining, WhatCouldNotLeaveIsTriedAgainSoon) {
  CoreDriver d;
  d.start();
  d.send_failed();  // nobody listens yet
  d.wait(30 * kMillisecond);
  EXPECT_EQ(d.count<Register>(), 2);
  d.wait(200 * kMillisecond);
  EXPECT_EQ(d.count<Register>(), 2);
  d.get(Registered{kEpoch, kMe});
  d.pool_ready();
  d.send_failed();
  d.wait(30 * kMillisecond);
  EXPECT_EQ(d.count<Hello>(), 2);
}

TEST(Joining, RegisteredOfAnotherIncarnationIsIgnored) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe - 1});
  EXPECT_EQ(d.core.state(), State::registering);
}

TEST(Joining, AFailedPoolEndsTheProcess) {
  CoreDriver d;
  d.start();
  d.get(Registered{kEpoch, kMe});
  WorkerActions out;
  d.core.pool_failed("no memory", /*final=*/false, out);
  const auto& exit = std::get<worker_action::Exit>(out.at(0));
  EXPECT_EQ(exit.code, kExitFault);
  EXPECT_EQ(exit.reason, "no memory");
}

// ---------------------------------------------------------------- steps

TEST(Steps, APromptInTwoChunksThenDecoding) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.add = {sequence(8, {10, 11, 12, 13, 14}, {2, 3})};
  one.rows = {{8, 4, LogitsWanted::none, false}};
  d.get(one);
  ASSERT_NE(d.step, nullptr);
  ASSERT_EQ(d.step->rows.size(), 1U);
  EXPECT_EQ(d.step->rows[0].tokens.size(), 4U);
  EXPECT_EQ(d.step->rows[0].position, 0);
  d.finish({kNoToken});
  EXPECT_EQ(d.last<StepResult>().step, 1U);
  EXPECT_TRUE(d.last<StepResult>().sequences.empty());

  StepPlan two = plan(2);
  two.rows = {{8, 1, LogitsWanted::last, true}};
  two.decode = true;  // its own joiner starts with the next step
  d.get(two);
  ASSERT_EQ(d.step->rows.size(), 1U);
  EXPECT_EQ(d.step->rows[0].position, 4);
  EXPECT_EQ(d.step->rows[0].tokens[0], 14);
  EXPECT_EQ(d.step->rows[0].n_generated, 0U);
  d.finish({77});
  EXPECT_EQ(d.last<StepResult>().sequences, (std::vector<std::uint64_t>{8}));
  EXPECT_EQ(d.last<StepResult>().tokens, (std::vector<Token>{77}));

  StepPlan three = plan(3);
  three.decode = true;
  d.get(three);
  ASSERT_EQ(d.step->rows.size(), 1U);
  EXPECT_TRUE(d.step->rows[0].decode);
  EXPECT_EQ(d.step->rows[0].tokens[0], 77);
  EXPECT_EQ(d.step->rows[0].position, 5);
  EXPECT_EQ(d.step->rows[0].n_generated, 1U);
  EXPECT_EQ((std::vector<BlockId>(d.step->rows[0].blocks.begin(), d.step->rows[0].blocks.end())),
            (std::vector<BlockId>{2, 3}));
}

TEST(Steps, AHandedOverSequenceDecodesInItsFirstPlan) {
  CoreDriver d;
  d.join();
  StepPlan p = plan(1);
  AddSequence a = sequence(9, {10, 11, 12, 13}, {2, 3});
  a.generated = {50};
  a.computed = 4;
  a.decode = true;
  p.add = {a};
  p.decode = true;
  d.get(p);
  ASSERT_EQ(d.step->rows.size(), 1U);
  EXPECT_EQ(d.step->rows[0].tokens[0], 50);
  EXPECT_EQ(d.step->rows[0].position, 4);
  EXPECT_EQ(d.step->rows[0].n_generated, 1U);
}

TEST(Steps, AQueuedPlanIsAppliedWhenItStarts) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.add = {sequence(8, {10, 11}, {2})};
  one.rows = {{8, 2, LogitsWanted::last, true}};
  StepPlan two = plan(2);
  two.decode = true;
  d.get(one);
  d.get(two);
  EXPECT_EQ(d.steps_started, 1);
  EXPECT_EQ(d.step->rows[0].tokens.size(), 2U);  // the first plan's, still
  d.finish({33});
  EXPECT_EQ(d.steps_started, 2);
  EXPECT_EQ(d.step->rows[0].tokens[0], 33);
  EXPECT_EQ(d.last<StepResult>().step, 1U);
}

WorkerCoreOptions two_at_once() {
  WorkerCoreOptions options;
  options.steps_at_once = 2;
  return options;
}

/// A prompt's step, and behind it the step that decodes its first token.
void start_two(CoreDriver& d, const SamplingParams& sampling = {}) {
  d.join();
  StepPlan prompt = plan(1);
  prompt.add = {sequence(8, {10, 11}, {2})};
  prompt.add[0].sampling = sampling;
  prompt.rows = {{8, 2, LogitsWanted::last, true}};
  d.get(prompt);
  StepPlan decode = plan(2);
  decode.decode = true;
  d.get(decode);
}

TEST(Steps, TwoAtOnceWhereTheDeviceTakesThem) {
  CoreDriver d(two_at_once());
  start_two(d);
  EXPECT_EQ(d.steps_started, 2);
  EXPECT_EQ(d.step->rows[0].from_row, 0);
  EXPECT_EQ(d.count<StepResult>(), 0);
  // Empty plans end in their turn; tables are told at rest, and nothing begins before.
  d.get(AuditTables{kTerm});
  d.get(plan(3));
  StepPlan decode = plan(4);
  decode.decode = true;
  d.get(decode);
  d.finish({33});
  EXPECT_EQ(d.last<StepResult>().tokens, (std::vector<Token>{33}));
  EXPECT_EQ(d.steps_started, 2);
  EXPECT_EQ(d.count<Tables>(), 0);
  d.finish({34});
  EXPECT_EQ(d.last<Tables>().steps_done, 2U);
  EXPECT_EQ(d.steps_started, 3);
  EXPECT_EQ(d.last<StepResult>().step, 3U);
  EXPECT_EQ(d.step->rows[0].tokens[0], 34);
}

/// A token that the host must know holds back the next step, and nothing else does.
TEST(Steps, OneAtATimeWhereTheNextDrawLooksAtTheToken) {
  SamplingParams penalised;
  penalised.repetition_penalty = 1.3F;
  CoreDriver d(two_at_once());
  start_two(d, penalised);
  EXPECT_EQ(d.steps_started, 1);
  d.finish({33});
  ASSERT_EQ(d.steps_started, 2);
  EXPECT_EQ(d.step->rows[0].from_row, -1);
  EXPECT_EQ(d.step->rows[0].tokens[0], 33);
  ASSERT_EQ(d.step->rows[0].history.size(), 3U);
  EXPECT_EQ(d.step->rows[0].history[2], 33);
}

TEST(Steps, TwoAtOnceBesideAPromptThatDrawsNothingYet) {
  SamplingParams penalised;
  penalised.repetition_penalty = 1.3F;
  CoreDriver d(two_at_once());
  d.join();
  StepPlan first = plan(1);
  first.add = {sequence(8, {10, 11, 12}, {2})};
  first.add[0].sampling = penalised;
  first.rows = {{8, 2, LogitsWanted::none, false}};
  d.get(first);
  StepPlan second = plan(2);
  second.rows = {{8, 1, LogitsWanted::last, true}};
  d.get(second);
  EXPECT_EQ(d.steps_started, 2);
  StepPlan third = plan(3);
  third.decode = true;
  d.get(third);
  d.finish({kNoToken});
  EXPECT_EQ(d.steps_started, 2);
  d.finish({33});
  EXPECT_EQ(d.steps_started, 3);
}

/// A term that ends waits for every step that still writes.
TEST(Steps, TwoAtOnceBothEndBeforeHello) {
  CoreDriver d(two_at_once());
  start_two(d);
  d.get(Fenced{kEpoch, kTerm});
  d.finish({33});
  EXPECT_EQ(d.count<Hello>(), 0);
  d.finish({34});
  EXPECT_EQ(d.count<Hello>(), 1);
  EXPECT_EQ(d.count<StepResult>(), 0);
}

TEST(Steps, APlanWithoutRowsNeedsNoDevice) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.add = {sequence(8, {10, 11}, {2})};
  d.get(one);
  StepPlan two = plan(2);
  two.drop = {8};
  d.get(two);
  EXPECT_EQ(d.steps_started, 0);
  EXPECT_EQ(d.count<StepResult>(), 2);
  EXPECT_EQ(d.last<StepResult>().step, 2U);
  EXPECT_EQ(d.core.sequences().size(), 0U);
}

TEST(Steps, CopiesAloneReachTheDevice) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.ops = {{1, 2}, {3, 4}};
  d.get(one);
  ASSERT_NE(d.step, nullptr);
  EXPECT_EQ(d.step->copies.size(), 2U);
  EXPECT_EQ(d.step->copies[1].to, 4U);
  d.finish({});
  EXPECT_EQ(d.last<StepResult>().step, 1U);
}

TEST(Steps, AFailedRowEndsItsSequenceOnly) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.add = {sequence(8, {10, 11}, {2}), sequence(9, {12}, {3})};
  one.rows = {{8, 2, LogitsWanted::last, true}, {9, 1, LogitsWanted::last, true}};
  StepPlan two = plan(2);
  two.decode = true;
  d.get(one);
  d.get(two);
  d.finish({kNoToken, 60}, {{0, "logits are not finite"}});
  const StepResult r = d.last<StepResult>();
  ASSERT_EQ(r.failed.size(), 1U);
  EXPECT_EQ(r.failed[0].sequence, 8U);
  EXPECT_EQ(r.sequences, (std::vector<std::uint64_t>{9}));
  ASSERT_EQ(d.step->rows.size(), 1U);  // the void row of 8 does not run
  EXPECT_EQ(d.step->rows[0].sequence, 9U);
  StepPlan three = plan(3);
  three.drop = {8};
  d.get(three);
  d.finish({61});
  EXPECT_EQ(d.core.state(), State::in_term);
}

TEST(Steps, ContentThatCannotRunFailsItsRowAndNotTheTerm) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  AddSequence bad = sequence(9, {12}, {4});
  bad.sampling.temperature = -1;
  one.add = {sequence(8, {10, 5000}, {2}), bad};
  one.rows = {{8, 2, LogitsWanted::last, true}, {9, 1, LogitsWanted::last, true}};
  d.get(one);
  EXPECT_EQ(d.steps_started, 0);
  const StepResult r = d.last<StepResult>();
  ASSERT_EQ(r.failed.size(), 2U);
  EXPECT_NE(r.failed[0].reason.find("5000"), std::string::npos);
  EXPECT_NE(r.failed[1].reason.find("temperature"), std::string::npos);
  EXPECT_EQ(d.core.state(), State::in_term);
}

TEST(Steps, AThrowingDeviceEndsTheProcess) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.ops = {{1, 2}};
  d.get(one);
  WorkerActions out;
  d.core.step_failed("out of memory", out);
  EXPECT_EQ(std::get<worker_action::Exit>(out.at(0)).code, kExitFault);
}

// ---------------------------------------------------------------- reports

TEST(Audit, TablesGoWithTheStepsDone) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.add = {sequence(9, {10, 11}, {2, 7}), sequence(8, {12}, {3})};
  one.rows = {{8, 1, LogitsWanted::last, true}};
  d.get(one);
  StepPlan two = plan(2);
  two.drop = {9};
  d.get(two);
  d.get(AuditTables{kTerm});
  EXPECT_EQ(d.count<Tables>(), 0);
  d.finish({5});
  const Tables t = d.last<Tables>();
  EXPECT_EQ(t.steps_done, 1U);
  EXPECT_EQ(t.sequences, (std::vector<std::uint64_t>{8, 9}));
  EXPECT_EQ(t.counts, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(t.blocks, (std::vector<BlockId>{3, 2, 7}));
  d.get(AuditTables{kTerm});
  EXPECT_EQ(d.last<Tables>().sequences, (std::vector<std::uint64_t>{8}));
}

TEST(Heartbeat, CountsPlansAndSteps) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.ops = {{1, 2}};
  StepPlan two = plan(2);
  two.ops = {{1, 2}};
  d.get(one);
  d.get(two);
  d.finish({});
  d.wait(300 * kMillisecond);
  EXPECT_EQ(d.last<WorkerHeartbeat>().plans_received, 2U);
  EXPECT_EQ(d.last<WorkerHeartbeat>().steps_done, 1U);
}

// ---------------------------------------------------------------- leaving

TEST(Leaving, SigtermIsToldAtOnceAndPlansGoOn) {
  CoreDriver d;
  d.join();
  d.terminate();
  EXPECT_TRUE(d.last<WorkerHeartbeat>().draining);
  StepPlan one = plan(1);
  one.ops = {{1, 2}};
  d.get(one);
  d.finish({});
  EXPECT_EQ(d.count<StepResult>(), 1);
  EXPECT_FALSE(d.exit.has_value());
  d.get(Leave{kMe});
  ASSERT_TRUE(d.exit.has_value());
  EXPECT_EQ(d.exit->code, kExitOk);
  EXPECT_EQ(d.count<WorkerBye>(), 1);
}

TEST(Roles, AWorkerRegistersWithTheOneThatItWasGiven) {
  CoreDriver d;
  d.join();
  d.get(TakeRole{kMe + 1, Role::prefill, false});  // an older process's
  d.get(TakeRole{kMe, Role::decode, true});
  d.get(Fenced{kEpoch + 1, 0});  // another scheduler
  EXPECT_EQ(d.last<Register>().role, Role::decode);
  EXPECT_EQ(d.last<Register>().home, Role::mixed) << "the one that it was started with";
  EXPECT_TRUE(d.last<Register>().held);
}

TEST(Leaving, TheDrainIsBounded) {
  WorkerCoreOptions options;
  options.drain = 2 * kSecond;
  CoreDriver d(options);
  d.join();
  StepPlan one = plan(1);
  one.ops = {{1, 2}};
  d.get(one);  // a step that never ends
  d.terminate();
  d.wait(1900 * kMillisecond);
  EXPECT_FALSE(d.exit.has_value());
  d.terminate();  // a second signal does not prolong it
  d.wait(200 * kMillisecond);
  ASSERT_TRUE(d.exit.has_value());
  EXPECT_EQ(d.exit->code, kExitOk);
  EXPECT_EQ(d.count<WorkerBye>(), 1);
}

TEST(Leaving, OutOfTermNobodyWaits) {
  CoreDriver d;
  d.start();
  d.terminate();
  ASSERT_TRUE(d.exit.has_value());
  EXPECT_EQ(d.exit->code, kExitOk);
}

TEST(Leaving, AFenceWhileDrainingEndsIt) {
  CoreDriver d;
  d.join();
  StepPlan one = plan(1);
  one.ops = {{1, 2}};
  d.get(one);
  d.terminate();
  d.get(Fenced{kEpoch + 1, kTerm});
  EXPECT_FALSE(d.exit.has_value());
  d.finish({});
  ASSERT_TRUE(d.exit.has_value());
  EXPECT_EQ(d.exit->code, kExitOk);
  EXPECT_EQ(d.count<Register>(), 0);
}

TEST(Leaving, SupersededAndRefused) {
  CoreDriver d;
  d.join();
  d.get(Superseded{kMe - 1});
  EXPECT_FALSE(d.exit.has_value());
  d.get(Superseded{kMe + 1});
  ASSERT_TRUE(d.exit.has_value());
  EXPECT_EQ(d.exit->code, kExitSuperseded);
  EXPECT_EQ(d.count<WorkerBye>(), 0);

  CoreDriver r;
  r.start();
  r.get(Refused{"another model"});
  ASSERT_TRUE(r.exit.has_value());
  EXPECT_EQ(r.exit->code, kExitRefused);
  EXPECT_NE(r.exit->reason.find("another model"), std::string::npos);
  r.sent.clear();
  r.get(Registered{kEpoch, kMe});
  r.wait(2 * kSecond);
  EXPECT_TRUE(r.sent.empty());
}

/// A sequence reads its first block in pool 77.
AddSequence reader_of(AllocationId pool) {
  AddSequence add = sequence(1, {1, 2, 3, 4, 5}, {3});
  add.before = {{pool, {2}}};
  add.computed = 4;
  return add;
}

/// The worker has mapped pool 77, and its rows may name the blocks of it.
void map_in_place(CoreDriver& d) {
  Pull probe;
  probe.term = kTerm;
  probe.pull_id = 1;
  probe.allocation = 77;
  probe.exporter_blocks = 8;
  probe.in_place = true;
  d.get(probe);
  d.pulled();
}

TEST(WorkerCore, AMappingStaysAsLongAsASequenceReadsIt) {
  CoreDriver d;
  d.join();
  map_in_place(d);
  StepPlan p = plan(1);
  p.add = {reader_of(77)};
  p.rows = {{1, 1, LogitsWanted::last, /*then_decode=*/true}};
  d.get(p);
  ASSERT_NE(d.step, nullptr);
  d.get(Close{77});
  EXPECT_TRUE(d.closes.empty());
  StepPlan drop = plan(2);
  drop.drop = {1};
  d.get(drop);  // waits for the step, which reads it yet
  EXPECT_TRUE(d.closes.empty());
  d.finish({9});
  EXPECT_EQ(d.closes, (std::vector<AllocationId>{77}));
}

TEST(WorkerCore, WhatIsToBeClosedIsReadByNobodyNew) {
  CoreDriver d;
  d.join();
  map_in_place(d);
  d.exporter_gone(77);
  StepPlan p = plan(1);
  p.add = {reader_of(77)};
  p.rows = {{1, 1, LogitsWanted::last, false}};
  d.get(p);
  ASSERT_EQ(d.last<StepResult>().failed.size(), 1U);
  EXPECT_TRUE(d.last<StepResult>().failed[0].unmapped);
}

/// A chunk that is void is nothing that another worker may wait for. Whoever does is told before
/// the step runs, and also where nothing is left of it to run.
TEST(WorkerCore, AStepThatLacksAChunkSaysSo) {
  CoreDriver d;
  d.join();
  const AddSequence elsewhere = [] {
    AddSequence add = reader_of(78);  // which is not mapped
    add.prompt.resize(12, 1);
    add.blocks = {3, 4};
    return add;
  }();
  StepPlan p = plan(1);
  p.add = {elsewhere, sequence(2, {1, 2}, {5})};
  p.rows = {{1, 4, LogitsWanted::none, false}, {2, 2, LogitsWanted::last, true}};
  d.get(p);
  ASSERT_NE(d.step, nullptr);
  EXPECT_EQ(d.step->rows.size(), 1U);
  EXPECT_EQ(d.lacking, (std::vector<StepId>{1}));
  d.finish({9});

  p = plan(2);
  p.rows = {{1, 3, LogitsWanted::none, false}};  // sent before that was known
  d.get(p);
  EXPECT_EQ(d.step, nullptr);
  EXPECT_EQ(d.lacking, (std::vector<StepId>{1, 2}));

  // Behind what a row draws nobody waits, nor behind one that runs.
  p = plan(3);
  AddSequence draws = reader_of(78);
  draws.sequence = 3;
  p.add = {draws, sequence(4, {1, 2, 3, 4, 5, 6, 7, 8}, {6, 7})};
  p.rows = {{3, 1, LogitsWanted::last, false}, {4, 4, LogitsWanted::none, false}};
  d.get(p);
  ASSERT_NE(d.step, nullptr);
  d.finish({});
  EXPECT_EQ(d.last<StepResult>().failed.size(), 1U);
  EXPECT_EQ(d.lacking.size(), 2U);
}

}  // namespace
}  // namespace baton::test
