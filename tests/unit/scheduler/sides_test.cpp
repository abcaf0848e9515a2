// The two sides of a pair: limits of their own, when the decode side takes over, and which prompts
// never leave it.
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/policy.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

std::uint32_t prompt_tokens(const StepPlan& plan) {
  std::uint32_t n = 0;
  for (const PromptRow& row : plan.rows) n += row.n_tokens;
  return n;
}

TEST(Sides, EachHasItsOwnTokenBudget) {
  Settings settings;
  settings.token_budget = 100;
  EXPECT_EQ(settings.token_budget.of(Role::prefill), 100U);
  settings.token_budget.prefill = 24;
  settings.token_budget.decode = 6;
  EXPECT_EQ(settings.token_budget.of(Role::prefill), 24U);
  EXPECT_EQ(settings.token_budget.of(Role::decode), 6U);
  EXPECT_EQ(settings.token_budget.of(Role::mixed), 100U);

  settings.steps_in_flight = 1;
  settings.local_prefill.tokens = 8;
  Cluster c(settings);
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 40, 4);
  c.submit(2, 8, 4);
  c.turn();
  EXPECT_EQ(prompt_tokens(c.last_plan(prefill)), 24U);
  EXPECT_EQ(prompt_tokens(c.last_plan(decode)), 6U);
  c.run();
  EXPECT_EQ(c.terminals.size(), 2U);
}

TEST(Sides, NoStepHasMoreTokensThanTheWorkerHasRoomFor) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.prompt_chunk = 64;
  settings.token_budget.prefill = 48;
  Cluster c(settings);
  const LinkId w = c.register_worker("prefill0", Role::prefill);
  Hello hello = c.hello_of("prefill0", 100);
  hello.max_step_tokens = 6;  // it was started with other settings
  c.from_worker(w, hello);
  EXPECT_EQ(c.worker("prefill0").step_room(), 6U);
  for (std::uint64_t i = 1; i <= 9; ++i) c.submit(i, 10, 4);  // nobody else decodes: they stay
  std::size_t widest = 0;
  for (int i = 0; i < 200 && c.terminals.size() < 9; ++i) {
    c.turn();
    const Compute& compute = c.worker("prefill0").compute;
    if (compute.steps.empty()) continue;
    const std::size_t tokens = compute.steps.front().decode.size() + prompt_tokens(c.last_plan(w));
    EXPECT_LE(tokens, 6U);
    widest = std::max(widest, tokens);
    c.answer(w);
  }
  EXPECT_EQ(widest, 6U);
  EXPECT_EQ(c.terminals.size(), 9U);
}

TEST(Sides, ThoseWhoDecodeWhereThePromptsRanFitAStep) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.token_budget.prefill = 4;
  Cluster c(settings);
  const LinkId w = c.register_worker("prefill0", Role::prefill);
  Hello hello = c.hello_of("prefill0", 100);
  hello.max_step_tokens = 5;
  c.from_worker(w, hello);
  const LinkId decode = c.ready_worker("decode0", Role::decode, 4);  // room for one
  for (std::uint64_t i = 1; i <= 9; ++i) c.submit(i, 4, 8);
  for (int i = 0; i < 30; ++i) {
    c.turn();
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(w);
  }
  EXPECT_LE(c.worker("prefill0").compute.sequences, 5U);
  c.gone(decode);
  for (int i = 0; i < 100 && c.terminals.size() < 9; ++i) {
    c.turn();
    const Compute& compute = c.worker("prefill0").compute;
    if (compute.steps.empty()) continue;
    EXPECT_LE(compute.steps.front().decode.size() + prompt_tokens(c.last_plan(w)), 5U);
    c.answer(w);
  }
  EXPECT_EQ(c.terminals.size(), 9U);
}

// ---------------------------------------------------------------- pull_watermark

TEST(PullWatermark, BelowItOrOnAnEmptyWorker) {
  Worker w;
  w.store.pool = BlockPool(20);
  std::vector<BlockId> blocks;
  Settings settings;
  settings.pull_watermark = 0.25;
  EXPECT_TRUE(may_pull(settings, w));
  w.compute.sequences = 1;
  w.store.pool.allocate(4, blocks);
  EXPECT_TRUE(may_pull(settings, w));
  w.store.pool.allocate(1, blocks);
  EXPECT_FALSE(may_pull(settings, w));
  w.compute.sequences = 0;
  EXPECT_TRUE(may_pull(settings, w));
  w.compute.sequences = 1;
  settings.pull_watermark = 1;
  w.store.pool.allocate(15, blocks);
  EXPECT_TRUE(may_pull(settings, w));  // whether there is room is another question
}

TEST(PullWatermark, PromptsWaitAtTheirSourceUntilThePoolIsEmptier) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.pull_watermark = 0.25;
  Cluster c(settings);
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode, /*blocks=*/20);
  for (std::uint64_t i = 1; i <= 3; ++i) c.submit(i, 8, 4);  // three blocks each
  c.turn();
  c.answer(prefill);
  c.turn();
  EXPECT_EQ(c.pulls[decode].size(), 2U);  // 0, then 3 of 20 in use; 6 are too many
  EXPECT_EQ(c.phase(3), Phase::handoff);
  EXPECT_EQ(c.find(3)->target, 0U);
  EXPECT_EQ(c.pool("prefill0").owned, 9U);
  while (c.terminal(1) == nullptr && c.terminal(2) == nullptr) {
    EXPECT_EQ(c.find(3)->target, 0U);
    while (!c.pulls[decode].empty()) c.done_pull(decode);
    c.turn();
    if (!c.worker("decode0").compute.steps.empty()) c.answer(decode);
  }
  c.run();
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(c.tokens_of(i), 4U);
}

/// B5's check: a full decode pool stalls prefill, and nothing is lost.
TEST(PullWatermark, AFullDecodePoolStallsPrefillWithoutLoss) {
  Settings settings;
  settings.pull_watermark = 0.5;
  Cluster c(settings);
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill, /*blocks=*/6);
  const LinkId decode = c.ready_worker("decode0", Role::decode, /*blocks=*/8);
  for (std::uint64_t i = 1; i <= 8; ++i) c.submit(i, 8, 6);
  for (int i = 0; i < 20; ++i) {  // the decode worker does nothing at all
    c.turn();
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(prefill);
  }
  EXPECT_EQ(c.worker("decode0").compute.sequences, 2U);
  EXPECT_EQ(c.worker("prefill0").compute.sequences, 2U);  // six blocks: it admits nobody else
  EXPECT_EQ(c.phase(5), Phase::waiting);
  EXPECT_FALSE(c.pulls[decode].empty());
  c.run();
  for (std::uint64_t i = 1; i <= 8; ++i) EXPECT_EQ(c.tokens_of(i), 6U);
}

// ---------------------------------------------------------------- who prefills where

/// Counters (local, remote) of prompts of 4, 8, ... 40 tokens on a pair.
std::pair<std::uint64_t, std::uint64_t> routed(std::uint32_t threshold) {
  Settings settings;
  settings.local_prefill.tokens = threshold;
  Cluster c(settings);
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  for (std::uint64_t i = 1; i <= 10; ++i) c.submit(i, 4 * static_cast<std::uint32_t>(i), 4);
  c.run();
  EXPECT_EQ(c.terminals.size(), 10U);
  EXPECT_EQ(c.state.counters.handoffs, c.state.counters.remote_prefills);
  return {c.state.counters.local_prefills, c.state.counters.remote_prefills};
}

TEST(LongInputsOnly, ThresholdsCountTokensZeroIsAlwaysAndInfinityNever) {
  using Routed = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(routed(0), (Routed{0, 10}));
  EXPECT_EQ(routed(19), (Routed{4, 6}));
  EXPECT_EQ(routed(20), (Routed{5, 5}));
  EXPECT_EQ(routed(kNoLimit), (Routed{10, 0}));
}

TEST(LongWaits, ADecodeWorkerTakesWhatHasWaitedSoLong) {
  Settings settings;
  settings.local_prefill.wait = 60 * kMillisecond;
  settings.token_budget.prefill = 8;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  for (std::uint64_t i = 1; i <= 3; ++i) c.submit(i, 8, 4);
  c.turn();  // the prefill worker is busy with the first
  EXPECT_EQ(c.state.workers[c.source(1).worker].name(), "prefill0");
  EXPECT_EQ(c.state.waiting.size(), 2U);
  c.now += 59 * kMillisecond;
  c.turn();
  EXPECT_EQ(c.state.waiting.size(), 2U);
  c.now += 2 * kMillisecond;
  c.turn();
  EXPECT_EQ(c.state.workers[c.source(2).worker].name(), "decode0");
  c.run();
  EXPECT_EQ(c.terminals.size(), 3U);
  EXPECT_GE(c.state.counters.local_prefills, 1U);
}

TEST(Balance, MixedWorkersShareWhatComesAtOnce) {
  Settings settings;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.ready_worker("mixed1", Role::mixed);
  for (std::uint64_t i = 1; i <= 8; ++i) c.submit(i, 4, 8);
  c.turn();
  EXPECT_EQ(c.state.workers[0].compute.sequences, 2U);  // and leaves the rest
  c.answer(first);
  c.turn();
  EXPECT_EQ(c.state.workers[0].compute.sequences, 4U);
  EXPECT_EQ(c.state.workers[1].compute.sequences, 4U);
  c.run();
  EXPECT_EQ(c.terminals.size(), 8U);
}

TEST(Balance, AWorkerThatDoesNothingIsNotWaitedForLong) {
  Settings settings;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 100);
  c.submit(2, 4, 100);
  c.turn();
  c.ready_worker("mixed1", Role::mixed);
  c.state.workers[1].compute.steps.resize(settings.steps_in_flight);  // frozen in a step
  c.state.workers[1].peer.work.add(Work::step, 0, 1, c.now);
  c.submit(3, 4, 8);
  c.answer(first);
  c.turn();
  EXPECT_EQ(c.state.waiting.size(), 1U);
  c.now += kWaitForBalance + kMillisecond;
  c.answer(first);
  c.turn();
  EXPECT_TRUE(c.state.waiting.empty());
}

/// The same prompt of 16 tokens twice: the second time the decode worker knows 12 of them.
struct Twice : Cluster {
  explicit Twice(double share) : Cluster(with(share), /*prefix_cache=*/true) {
    ready_worker("prefill0", Role::prefill);
    ready_worker("decode0", Role::decode, /*blocks=*/20);
    submit(1, 16, 4);
    run();
    EXPECT_EQ(state.counters.remote_prefills, 1U);
  }
  static Settings with(double share) {
    Settings settings;
    settings.local_prefill.cached = share;
    return settings;
  }
};

TEST(CachedShare, APromptThatTheDecodeWorkerMostlyKnowsStaysThere) {
  for (const auto& [share, local] :
       {std::pair(0.0, 0U), {0.5, 1U}, {0.75, 1U}, {0.76, 0U}, {1.0, 0U}}) {
    Twice c(share);
    c.submit(2, 16, 4);
    c.run();
    EXPECT_EQ(c.state.counters.local_prefills, local) << share;
    EXPECT_EQ(c.state.counters.remote_prefills, 2U - local) << share;
    EXPECT_EQ(c.tokens_of(2), 4U);
  }
}

TEST(CachedShare, AnUnknownPromptIsHandedOffAllTheSame) {
  Twice c(0.5);
  Submit other = c.request(2, 16, 4);
  other.prompt.assign(16, 6);
  c.from_frontend(c.frontend, other);
  c.run();
  EXPECT_EQ(c.state.counters.remote_prefills, 2U);
}

TEST(CachedShare, WithoutRoomOnTheDecodeWorkerThePrefillWorkerTakesIt) {
  Twice c(0.5);
  c.state.settings.max_running = 1;
  Submit other = c.request(2, 16, 40);
  other.prompt.assign(16, 6);
  c.from_frontend(c.frontend, other);
  for (int i = 0; i < 20 && c.phase(2) != Phase::decode; ++i) c.run(1);
  ASSERT_EQ(c.phase(2), Phase::decode);
  c.submit(3, 16, 4);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::prefill);
  EXPECT_EQ(c.state.workers[c.source(3).worker].name(), "prefill0");
  c.run();
  EXPECT_EQ(c.tokens_of(3), 4U);
}

}  // namespace
}  // namespace baton::test
