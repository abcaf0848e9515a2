// Who is taken on, when, and in what portions.
#include "scheduler/plan/admission.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

TEST(Admission, ReservesThePromptAndOneTokenMore) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, /*prompt=*/8);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_EQ(c.source(1).tail().blocks.size(), 3U);  // 8 + 1 tokens, 4 a block
  EXPECT_EQ(c.pool("mixed0").owned, 3U);
}

TEST(Admission, TheFirstToArriveGoesFirst) {
  Settings settings;
  settings.max_running = 1;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  Submit late = c.request(1, 4, 1);
  Submit early = c.request(2, 4, 1);
  late.arrival = c.now + 2;
  early.arrival = c.now + 1;
  c.from_frontend(c.frontend, late);
  c.from_frontend(c.frontend, early);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::prefill);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.answer(w);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
}

TEST(Admission, PrioritiesOrderTheQueueAndAgeing) {
  struct Case {
    std::int32_t first, second;  // priorities; the second request comes `after` the first
    TimeNs after;
    std::uint64_t goes_first;
  };
  const Case table[] = {
      {0, 0, kSecond, 1},
      {0, -1, kSecond, 2},
      {1, 0, kSecond, 2},
      {0, -1, 5 * kSecond, 1},
      {0, -1, 6 * kSecond, 1},
      {3, 0, 14 * kSecond, 2},
      {3, 0, 16 * kSecond, 1},
      {100, -100, 999 * kSecond, 2},
      {100, -100, 1001 * kSecond, 1},
      {2'000'000'000, -2'000'000'000, 1001 * kSecond, 1},  // no more than the bounds count
  };
  for (const Case& line : table) {
    Settings settings;
    settings.max_running = 1;
    Cluster c(settings);
    c.ready_worker("mixed0", Role::mixed);
    Submit first = c.request(1, 4, 1);
    Submit second = c.request(2, 4, 1);
    first.priority = line.first;
    second.priority = line.second;
    second.arrival = first.arrival + line.after;
    first.deadline = second.deadline = c.now + 9000 * kSecond;
    c.from_frontend(c.frontend, first);
    c.from_frontend(c.frontend, second);
    c.turn();
    EXPECT_EQ(c.phase(line.goes_first), Phase::prefill)
        << line.first << " then " << line.second << " after " << line.after / kSecond << " s";
    EXPECT_EQ(c.phase(3 - line.goes_first), Phase::waiting);
  }
}

TEST(Admission, NothingStarvesBehindHigherPriorities) {
  Settings settings;
  settings.max_running = 1;
  settings.priority_age = 10 * kMillisecond;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  Submit patient = c.request(1, 4, 1);
  patient.priority = 5;
  c.from_frontend(c.frontend, patient);
  std::uint64_t next = 2;
  const TimeNs begin = c.now;
  // A more urgent one every 2 ms, and room for one at a time.
  for (; c.phase(1) == Phase::waiting && next < 200; ++next) {
    Submit urgent = c.request(next, 4, 1);
    urgent.arrival = c.now;
    c.from_frontend(c.frontend, urgent);
    c.turn();
    if (c.phase(1) == Phase::waiting) c.answer(w);
    c.now += 2 * kMillisecond;
  }
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_GE(c.now - begin, 40 * kMillisecond);
  EXPECT_LE(c.now - begin, 60 * kMillisecond);
}

TEST(Admission, AFullQueueAnswers429WithRetryAfter) {
  Settings settings;
  settings.max_waiting = 2;
  Cluster c(settings);
  c.submit(1);
  c.submit(2);
  c.submit(3);
  EXPECT_EQ(c.code(3), ErrorCode::queue_full);
  EXPECT_GE(c.terminal(3)->retry_after_s, 1U);
  EXPECT_EQ(c.find(3), nullptr);
}

TEST(Admission, WhatWasAcceptedBeforeIsAcceptedAgainPastTheLimit) {
  Settings settings;
  settings.max_waiting = 1;
  Cluster c(settings);
  c.submit(1);
  Submit again = c.request(2, 4, 8);
  again.again = true;
  again.attempt = 2;
  c.from_frontend(c.frontend, again);
  EXPECT_EQ(c.phase(2), Phase::waiting);
}

TEST(Admission, APromptThatFitsNoPoolIsTooLong) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/5);
  c.submit(1, 20);
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
  c.submit(2, 19);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::prefill);
}

TEST(Admission, APromptAcceptedBeforeThePoolWasKnownIsTooLongLater) {
  Cluster c;
  c.submit(1, 40);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.ready_worker("mixed0", Role::mixed, 5);
  c.turn();
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
}

TEST(Admission, TheModelsContextBoundsLikeThePool) {
  Cluster c;
  const LinkId link = c.register_worker("mixed0", Role::mixed);
  Hello hello = Cluster::hello_of("mixed0", 100);
  hello.max_context = 16;
  c.submit(1, 16);
  c.from_worker(link, hello);
  c.turn();
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
}

TEST(Admission, AnAnswerEndsWhereTheContextDoes) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/5);
  c.submit(1, 12, /*max_tokens=*/100);
  c.run();
  ASSERT_NE(c.terminal(1), nullptr);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.terminal(1)->reason[0], static_cast<std::uint32_t>(FinishReason::length));
  EXPECT_EQ(c.tokens_of(1), 8U);
}

TEST(Admission, AnEmptyPromptIsRefused) {
  Cluster c;
  c.submit(1, 0);
  EXPECT_EQ(c.code(1), ErrorCode::invalid_argument);
}

TEST(Admission, AStaleEpochIsDropped) {
  Cluster c;
  Submit m = c.request(1, 4, 4);
  m.epoch = 7;
  c.from_frontend(c.frontend, m);
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_TRUE(c.terminals.empty());
}

TEST(Admission, PromptsAreCutIntoChunksWithinTheBudget) {
  Settings settings;
  settings.token_budget = 6;
  settings.prompt_chunk = 4;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 10);
  c.submit(2, 10);
  c.turn();
  StepPlan plan = c.last_plan(w);
  ASSERT_EQ(plan.rows.size(), 2U);
  EXPECT_EQ(plan.rows[0].n_tokens, 4U);
  EXPECT_EQ(plan.rows[1].n_tokens, 2U);  // what is left of the budget
  EXPECT_EQ(plan.rows[0].logits, LogitsWanted::none);
  c.answer(w);
  c.turn();
  plan = c.last_plan(w);
  EXPECT_EQ(plan.rows[0].n_tokens, 4U);
  EXPECT_EQ(plan.rows[1].n_tokens, 2U);
  c.answer(w);
  c.turn();
  plan = c.last_plan(w);
  EXPECT_EQ(plan.rows[0].n_tokens, 2U);
  EXPECT_EQ(plan.rows[0].logits, LogitsWanted::last);
  EXPECT_TRUE(plan.rows[0].then_decode);
}

TEST(Admission, DecodeRowsCountAgainstTheBudget) {
  Settings settings;
  settings.token_budget = 4;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 3, 50);
  c.turn();
  c.answer(w);  // decodes from now on
  c.submit(2, 10);
  c.turn();
  const StepPlan plan = c.last_plan(w);
  EXPECT_TRUE(plan.decode);
  ASSERT_EQ(plan.rows.size(), 1U);
  EXPECT_EQ(plan.rows[0].n_tokens, 3U);
}

TEST(Admission, TwoStepsAreInFlightAndNoMore) {
  Cluster c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 50);
  c.turn();
  EXPECT_EQ(c.sent<StepPlan>(w).size(), 2U);
  EXPECT_TRUE(c.last_plan(w).decode);
  c.turn();
  EXPECT_EQ(c.sent<StepPlan>(w).size(), 2U);
  c.answer(w);
  c.turn();
  EXPECT_EQ(c.sent<StepPlan>(w).size(), 3U);
}

TEST(Admission, NoRowIsPlannedBeyondTheLastToken) {
  Cluster c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, /*max_tokens=*/2);
  c.turn();
  const std::size_t plans = c.sent<StepPlan>(w).size();
  EXPECT_EQ(plans, 2U);  // the prompt, then one decode row
  c.answer(w);
  c.turn();
  EXPECT_FALSE(c.last_plan(w).decode && c.sent<StepPlan>(w).size() > plans);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 2U);
}

TEST(Admission, MaxRunningBoundsAWorkersSequences) {
  Settings settings;
  settings.max_running = 2;
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed);
  for (std::uint64_t i = 1; i <= 3; ++i) c.submit(i, 4, 50);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::prefill);
  EXPECT_EQ(c.phase(3), Phase::waiting);
}

TEST(Admission, AnIdleWorkerThatIsSilentGetsNothing) {
  Cluster c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.now += 2 * kSecond;
  c.submit(1);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.heartbeat(w);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
}

// ---------------------------------------------------------------- placement

TEST(Placement, PromptsGoToThePrefillWorker) {
  Cluster c;
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  c.submit(1);
  c.turn();
  EXPECT_EQ(c.worker("prefill0").compute.sequences, 1U);
  EXPECT_EQ(c.worker("decode0").compute.sequences, 0U);
}

TEST(Placement, WithNoPrefillWorkerDecodeWorkersPrefill) {
  Cluster c;
  c.ready_worker("decode0", Role::decode);
  c.submit(1, 4, 3);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST(Placement, ShortPromptsPrefillWhereTheyDecode) {
  Settings settings;
  settings.local_prefill.tokens = 6;
  Cluster c(settings);
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  c.submit(1, 6);
  c.submit(2, 7);
  c.turn();
  EXPECT_EQ(c.state.workers[c.source(1).worker].name(), "decode0");
  EXPECT_EQ(c.state.workers[c.source(2).worker].name(), "prefill0");
}

TEST(Placement, AHugeThresholdLeavesThePrefillWorkerIdle) {
  Settings settings;
  settings.local_prefill.tokens = 1'000'000;
  Cluster c(settings);
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  for (std::uint64_t i = 1; i <= 4; ++i) c.submit(i, 30, 4);
  c.run();
  EXPECT_TRUE(c.sent<StepPlan>(prefill).empty());
  EXPECT_EQ(c.terminals.size(), 4U);
  EXPECT_EQ(c.state.counters.handoffs, 0U);
}

TEST(Placement, WithNoDecodeWorkerAPrefillWorkerDecodesIfItMay) {
  Settings settings;
  settings.no_decode = NoDecode::run;
  Cluster c(settings);
  c.ready_worker("prefill0", Role::prefill);
  c.submit(1, 4, 3);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 3U);
}

TEST(Placement, WhatOutgrowsTheDecodersEndsWhereTheModelDoes) {
  Settings settings;
  settings.no_decode = NoDecode::run;
  Cluster c(settings);
  const auto joins = [&c](const char* name, Role role, std::uint32_t blocks) {
    const LinkId link = c.register_worker(name, role);
    Hello hello = Cluster::hello_of(name, blocks);
    hello.max_context = 20;
    c.from_worker(link, hello);
    return link;
  };
  c.submit(1, 14, /*max_tokens=*/100);  // before anybody knows that decode0 holds 12 tokens
  const LinkId decode = joins("decode0", Role::decode, /*blocks=*/3);
  c.gone(decode);
  joins("prefill0", Role::prefill, 100);
  c.run();
  ASSERT_NE(c.terminal(1), nullptr);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.terminal(1)->reason[0], static_cast<std::uint32_t>(FinishReason::length));
  EXPECT_EQ(c.tokens_of(1), 6U);
}

TEST(Placement, WithNoDecodeWorkerRequestsWaitIfTheyMust) {
  Settings settings;
  settings.no_decode = NoDecode::wait;
  Cluster c(settings);
  c.ready_worker("prefill0", Role::prefill);
  c.submit(1, 4, 3);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::handoff);
  EXPECT_EQ(c.tokens_of(1), 1U);  // the first token does not wait
  c.ready_worker("decode0", Role::decode);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
}

TEST(Placement, AnAnswerOfOneTokenNeedsNoHandoff) {
  Cluster c;
  c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 9, 1);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_TRUE(c.sent<Pull>(decode).empty());
}

TEST(Placement, TheLeastLoadedDecodeWorkerIsChosen) {
  Cluster c;
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  c.ready_worker("decode1", Role::decode);
  for (std::uint64_t i = 1; i <= 4; ++i) c.submit(i, 4, 500);
  c.run(20);
  EXPECT_EQ(c.worker("decode0").compute.sequences, 2U);
  EXPECT_EQ(c.worker("decode1").compute.sequences, 2U);
}

TEST(Pools, ASmallWorkerThatJoinsRefusesNothingThatALargeOneHolds) {
  Cluster c;
  LinkId large = c.ready_worker("mixed0", Role::mixed, 100);
  c.gone(large);
  c.submit(1, 200, 4);
  const LinkId small = c.ready_worker("mixed1", Role::mixed, 10);
  c.run(3);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_STREQ(c.find(1)->passed_over, "the pool or the model is too small for it");
  c.submit(2, 8, 4);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::ok);
  EXPECT_FALSE(c.sent<StepPlan>(small).empty());
  large = c.ready_worker("mixed0", Role::mixed, 100, 2);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_FALSE(c.sent<StepPlan>(large).empty());
}

TEST(Pools, ASchedulerThatHasJustBegunWaitsForALargerPool) {
  Cluster c;
  c.state.started = c.now;
  c.ready_worker("mixed1", Role::mixed, 10);
  c.submit(1, 200, 4);
  c.submit(2, 300, 4);
  c.run(3);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  const LinkId large = c.ready_worker("mixed0", Role::mixed, 60);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_FALSE(c.sent<StepPlan>(large).empty());
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.wait(kWaitForPools);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::too_long);
  c.submit(3, 300, 4);
  c.run();
  EXPECT_EQ(c.code(3), ErrorCode::too_long) << "it knows its workers by now";
}

TEST(Pools, ALostWorkersPoolIsForgottenThoughNobodySawItsProcessEnd) {
  Cluster c;
  const LinkId large = c.ready_worker("mixed0", Role::mixed, 100);
  const LinkId small = c.ready_worker("mixed1", Role::mixed, 10);
  c.event(SendFailed{large});
  c.submit(1, 200, 4);
  for (int i = 0; i < 11; ++i) {
    c.now += kSecond;
    c.heartbeat(small);
    c.tick();
  }
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
}

TEST(Pools, OneThatOutgrowsASmallPoolGoesOnInALargeOne) {
  Cluster c;
  const LinkId large = c.ready_worker("mixed0", Role::mixed, 100);
  c.gone(large);
  const LinkId small = c.ready_worker("mixed1", Role::mixed, 5);
  c.submit(1, 8, 60);
  c.run(8);
  EXPECT_GT(c.tokens_of(1), 0U);
  c.ready_worker("mixed0", Role::mixed, 100, 2);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 60U);
  EXPECT_FALSE(c.sent<StepPlan>(small).empty());
}

}  // namespace
}  // namespace baton::test
