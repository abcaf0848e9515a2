// How many prompts and how many sequences a step holds, and whether prompts pause decoding.
#include "scheduler/plan/batch_limits.h"

#include <algorithm>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings limited(std::vector<std::uint32_t> prefill, std::vector<std::uint32_t> decode) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.prefill_batch_size = std::move(prefill);
  settings.decode_batch_size = std::move(decode);
  return settings;
}

std::size_t prompts_in(const StepPlan& plan) {
  return static_cast<std::size_t>(std::count_if(plan.rows.begin(), plan.rows.end(),
                                                [](const PromptRow& r) { return r.n_tokens > 0; }));
}

TEST(BatchLimits, TheSmallestSizeThatTakesTheQueueElseTheLargest) {
  const std::vector<std::uint32_t> sizes = {1, 8, 32};
  const std::pair<std::size_t, std::uint32_t> table[] = {{0, 1},  {1, 1},   {2, 8},   {8, 8},
                                                         {9, 32}, {32, 32}, {33, 32}, {5000, 32}};
  for (const auto& [queued, size] : table) EXPECT_EQ(batch_bucket(sizes, queued), size) << queued;
  EXPECT_EQ(batch_bucket({4}, 0), 4U);
  EXPECT_EQ(batch_bucket({4}, 100), 4U);
  EXPECT_EQ(batch_bucket({}, 100), kNoLimit);
}

TEST(BatchLimits, PromptsOfOneStep) {
  Cluster c(limited({2}, {}));
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  for (std::uint64_t i = 1; i <= 5; ++i) c.submit(i, 4, 6);
  c.turn();
  EXPECT_EQ(prompts_in(c.last_plan(w)), 2U);
  EXPECT_EQ(c.phase(2), Phase::prefill);
  EXPECT_EQ(c.phase(3), Phase::waiting);
  c.run();
  for (const StepPlan& plan : c.sent<StepPlan>(w)) EXPECT_LE(prompts_in(plan), 2U);
  for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(c.tokens_of(i), 6U);
}

TEST(BatchLimits, APromptInChunksKeepsItsPlaceInTheStep) {
  Settings settings = limited({1}, {});
  settings.prompt_chunk = 4;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 12, 2);
  c.submit(2, 4, 2);
  for (int chunk = 0; chunk < 3; ++chunk) {
    c.turn();
    ASSERT_EQ(prompts_in(c.last_plan(w)), 1U);
    EXPECT_EQ(c.last_plan(w).rows[0].sequence, c.source(1).id);
    EXPECT_EQ(c.phase(2), Phase::waiting);
    c.answer(w);
  }
  c.run();
  EXPECT_EQ(c.tokens_of(2), 2U);
}

TEST(BatchLimits, SequencesOfOneWorker) {
  Cluster c(limited({}, {3}));
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  for (std::uint64_t i = 1; i <= 8; ++i) c.submit(i, 4, 6);
  for (int i = 0; i < 100 && c.terminals.size() < 8; ++i) {
    c.turn();
    EXPECT_LE(c.worker("mixed0").compute.sequences, 3U);
    if (!c.worker("mixed0").compute.steps.empty()) c.answer(w);
  }
  for (const StepPlan& plan : c.sent<StepPlan>(w)) EXPECT_LE(plan.add.size(), 3U);
  EXPECT_EQ(c.terminals.size(), 8U);
}

TEST(BatchLimits, AShortQueueKeepsTheBatchSmall) {
  Cluster c(limited({}, {2, 6}));
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  for (std::uint64_t i = 1; i <= 3; ++i) c.submit(i, 4, 50);
  c.turn();  // three wait: up to six run
  EXPECT_EQ(c.worker("mixed0").compute.sequences, 3U);
  c.answer(w);
  c.submit(4, 4, 50);
  c.turn();  // one waits: two run, and nobody is sent away
  EXPECT_EQ(c.phase(4), Phase::waiting);
  EXPECT_EQ(c.worker("mixed0").compute.sequences, 3U);
  for (std::uint64_t i = 5; i <= 6; ++i) c.submit(i, 4, 50);
  c.answer(w);
  c.turn();
  EXPECT_EQ(c.worker("mixed0").compute.sequences, 6U);
  c.run();
  EXPECT_EQ(c.terminals.size(), 6U);
}

TEST(BatchLimits, OnAPairTheyHoldWhereTokensAreDecoded) {
  Cluster c(limited({}, {1}));
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  for (std::uint64_t i = 1; i <= 3; ++i) c.submit(i, 4, 6);
  c.turn();
  EXPECT_EQ(c.worker("prefill0").compute.sequences, 3U);
  c.answer(prefill);
  c.turn();
  EXPECT_EQ(c.worker("decode0").compute.sequences, 1U);
  EXPECT_EQ(c.pulls[decode].size(), 1U);
  c.run();
  EXPECT_EQ(c.terminals.size(), 3U);
}

TEST(BatchLimits, BeamsThatAreWiderAreRefused) {
  Cluster c(limited({}, {2, 3}));
  c.ready_worker("mixed0", Role::mixed);
  Submit wide = c.request(1, 4, 6);
  wide.sampling.num_beams = 4;
  c.from_frontend(c.frontend, wide);
  EXPECT_EQ(c.code(1), ErrorCode::invalid_argument);
  EXPECT_EQ(c.terminal(1)->message,
            "4 beams are more than the 3 sequences that a worker runs at once");
}

// ---------------------------------------------------------------- prompts_pause_decode

/// One request decodes, then a prompt of two chunks comes.
struct Decoding : Cluster {
  explicit Decoding(bool pause) : Cluster(with(pause)), w(ready_worker("mixed0", Role::mixed)) {
    submit(1, 4, 20);
    turn();
    answer(w);
    turn();
    EXPECT_TRUE(last_plan(w).decode);
    answer(w);
    submit(2, 8, 4);
  }
  static Settings with(bool pause) {
    Settings settings;
    settings.steps_in_flight = 1;
    settings.prompt_chunk = 4;
    settings.prompts_pause_decode = pause;
    return settings;
  }
  LinkId w;
};

TEST(PromptsPauseDecode, OnAPromptRunsAloneUntilItIsThrough) {
  Decoding c(true);
  const std::size_t before = c.tokens_of(1);
  for (int chunk = 0; chunk < 2; ++chunk) {
    c.turn();
    EXPECT_FALSE(c.last_plan(c.w).decode);
    EXPECT_EQ(prompts_in(c.last_plan(c.w)), 1U);
    c.answer(c.w);
  }
  EXPECT_EQ(c.tokens_of(1), before);
  c.turn();
  EXPECT_TRUE(c.last_plan(c.w).decode);
  EXPECT_EQ(prompts_in(c.last_plan(c.w)), 0U);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

TEST(PromptsPauseDecode, OffBothShareTheStep) {
  Decoding c(false);
  c.turn();
  EXPECT_TRUE(c.last_plan(c.w).decode);
  EXPECT_EQ(prompts_in(c.last_plan(c.w)), 1U);
}

TEST(PromptsPauseDecode, WhoeverWaitsForRoomPausesNobody) {
  Settings settings = Decoding::with(true);
  settings.max_running = 1;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 10);
  c.turn();
  c.answer(w);
  c.submit(2, 4, 10);
  c.turn();
  EXPECT_TRUE(c.last_plan(w).decode);
  EXPECT_EQ(c.phase(2), Phase::waiting);
}

TEST(PromptsPauseDecode, APreemptionIsFollowedByAStepOfDecoding) {
  Settings settings = Decoding::with(true);
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/6);
  c.submit(1, 8, 12);
  c.submit(2, 8, 12);
  c.run();
  EXPECT_GT(c.state.counters.preemptions, 0U);
  EXPECT_LT(c.state.counters.preemptions, 24U);  // each one lets somebody take a token
  EXPECT_EQ(c.tokens_of(1), 12U);
  EXPECT_EQ(c.tokens_of(2), 12U);
}

}  // namespace
}  // namespace baton::test
