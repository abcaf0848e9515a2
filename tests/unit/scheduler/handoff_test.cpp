// The hand-off of a prompt's blocks: what must be true before what.
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

struct Pair : Cluster {
  explicit Pair(const Settings& settings = {}, std::uint32_t decode_blocks = 100)
      : Cluster(settings),
        prefill(ready_worker("prefill0", Role::prefill)),
        decode(ready_worker("decode0", Role::decode, decode_blocks)) {}
  LinkId prefill;
  LinkId decode;
};

Settings chunks_of(std::uint32_t n) {
  Settings settings;
  settings.prompt_chunk = n;
  settings.steps_in_flight = 1;
  return settings;
}

TEST(Handoff, BlocksArePulledChunkByChunkWhileThePromptRuns) {
  Pair c(chunks_of(6));
  c.submit(1, 14);
  c.turn();
  EXPECT_TRUE(c.pulls[c.decode].empty());
  c.answer(c.prefill);  // 6 of 14 computed: one block of 4 is final
  c.turn();
  ASSERT_EQ(c.pulls[c.decode].size(), 1U);
  EXPECT_EQ(c.pulls[c.decode][0].from.size(), 1U);
  EXPECT_EQ(c.phase(1), Phase::prefill);
  c.answer(c.prefill);  // 12: two more
  ASSERT_EQ(c.pulls[c.decode].size(), 2U);
  EXPECT_EQ(c.pulls[c.decode][1].from.size(), 2U);
  c.turn();
  c.answer(c.prefill);  // 14: the partly filled one
  ASSERT_EQ(c.pulls[c.decode].size(), 3U);
  EXPECT_EQ(c.pulls[c.decode][2].from.size(), 1U);
}

TEST(Handoff, TheTargetIsReservedWholeBeforeTheFirstPull) {
  Pair c(chunks_of(4));
  c.submit(1, 16);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  ASSERT_EQ(c.pulls[c.decode].size(), 1U);
  EXPECT_EQ(c.target(1).tail().blocks.size(), 5U);  // 16 tokens and one of growth
  EXPECT_EQ(c.pool("decode0").owned, 5U);
}

TEST(Handoff, NothingIsPulledWhileTheTargetCannotHoldAll) {
  Pair c(chunks_of(4), /*decode_blocks=*/10);
  c.submit(1, 20, 50);
  c.submit(2, 20, 50);
  for (int i = 0; i < 12; ++i) {
    c.turn();
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(c.prefill);
  }
  EXPECT_EQ(c.phase(1), Phase::handoff);
  EXPECT_EQ(c.phase(2), Phase::handoff);
  EXPECT_NE(c.find(1)->target, 0U);
  EXPECT_EQ(c.find(2)->target, 0U);
  EXPECT_EQ(c.pool("prefill0").owned, 12U);  // backpressure: the source keeps its blocks
}

TEST(Handoff, TheFirstTokenLeavesBeforeThePullsAreDone) {
  Pair c;
  c.submit(1, 8);
  c.turn();
  c.answer(c.prefill, 42);
  EXPECT_EQ(c.tokens[1], std::vector<Token>{42});
  c.turn();
  EXPECT_EQ(c.pulls[c.decode].size(), 1U);
  EXPECT_EQ(c.phase(1), Phase::handoff);
}

TEST(Handoff, TheSequenceIsAddedAfterTheLastPullWithItsFirstToken) {
  Pair c;
  c.submit(1, 8);
  c.turn();
  c.answer(c.prefill, 42);
  c.turn();
  EXPECT_TRUE(c.sent<StepPlan>(c.decode).empty());
  c.done_pull(c.decode);
  EXPECT_EQ(c.phase(1), Phase::decode);
  c.turn();
  ASSERT_EQ(c.sent<StepPlan>(c.decode).size(), 2U);
  const StepPlan plan = c.sent<StepPlan>(c.decode)[0];
  ASSERT_EQ(plan.add.size(), 1U);
  EXPECT_EQ(plan.add[0].generated, std::vector<Token>{42});
  EXPECT_EQ(plan.add[0].computed, 8U);
  EXPECT_TRUE(plan.add[0].decode);
  EXPECT_TRUE(plan.decode);
}

TEST(Handoff, TheSourceIsReleasedAfterTheLastPull) {
  Pair c;
  c.submit(1, 8);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  EXPECT_EQ(c.pool("prefill0").owned, 3U);
  c.done_pull(c.decode);
  EXPECT_EQ(c.pool("prefill0").owned, 0U);
  c.turn();
  EXPECT_EQ(c.last_plan(c.prefill).drop.size(), 1U);
}

TEST(Handoff, ADecodeStepWaitsForNobodysPull) {
  Pair c;
  c.submit(1, 4, 50);
  c.run(3);  // decodes
  ASSERT_EQ(c.phase(1), Phase::decode);
  c.submit(2, 8, 50);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  ASSERT_EQ(c.pulls[c.decode].size(), 1U);  // stays open
  const std::size_t before = c.tokens_of(1);
  for (int i = 0; i < 5; ++i) {
    c.answer(c.decode);
    c.turn();
  }
  EXPECT_EQ(c.tokens_of(1), before + 5);
  EXPECT_EQ(c.tokens_of(2), 1U);
}

TEST(Handoff, AFailedPullIsTriedAgainLaterAndThreeMakeItLocal) {
  Pair c;
  c.submit(1, 8, 3);
  c.turn();
  c.answer(c.prefill);
  for (int i = 0; i < 3; ++i) {
    c.turn();
    ASSERT_EQ(c.pulls[c.decode].size(), 1U) << i;
    c.fail_pull(c.decode);
    c.turn();
    EXPECT_TRUE(c.pulls[c.decode].empty());  // not at once
    c.wait(300 * kMillisecond);
  }
  EXPECT_TRUE(c.find(1)->local);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 3U);
  EXPECT_EQ(c.state.counters.handoffs, 0U);
}

TEST(Handoff, ACancelDuringAPullFencesItsTargetUntilItEnds) {
  Pair c;
  c.submit(1, 8);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  EXPECT_EQ(c.code(1), ErrorCode::cancelled);
  EXPECT_EQ(c.pool("decode0").fenced, 2U);   // what the pull writes
  EXPECT_EQ(c.pool("prefill0").fenced, 2U);  // what it reads
  c.done_pull(c.decode);
  EXPECT_EQ(c.pool("decode0").fenced, 0U);
  EXPECT_EQ(c.pool("prefill0").free, 100U);
}

TEST(Handoff, TheTargetDiesAndThePromptIsPulledAgainElsewhere) {
  Pair c;
  const LinkId other = c.ready_worker("decode1", Role::decode);
  c.submit(1, 8, 3);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  const LinkId first = c.pulls[c.decode].empty() ? other : c.decode;
  const LinkId second = first == other ? c.decode : other;
  c.gone(first);
  c.turn();
  ASSERT_EQ(c.pulls[second].size(), 1U);
  EXPECT_EQ(c.sent<StepPlan>(c.prefill).size(), 1U);  // nothing was computed again
  c.pulls[first].clear();
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
}

TEST(Handoff, TheSourceDiesWhileAllPullsAreAskedFor) {
  Pair c;
  c.submit(1, 8, 3);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  c.gone(c.prefill);
  EXPECT_EQ(c.phase(1), Phase::handoff);  // the mapping outlives its exporter
  c.done_pull(c.decode);
  EXPECT_EQ(c.phase(1), Phase::decode);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
  EXPECT_EQ(c.state.counters.requeued, 0U);
}

TEST(Handoff, TheSourceDiesBeforeAllPullsAreAskedFor) {
  Pair c(chunks_of(4));
  c.submit(1, 12, 3);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  ASSERT_EQ(c.pulls[c.decode].size(), 1U);
  c.gone(c.prefill);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.pool("decode0").owned, 0U);
  EXPECT_EQ(c.pool("decode0").fenced, 1U);  // until the pull is answered
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
}

TEST(Handoff, TheLastDecodeWorkerDiesAndTheSequenceStays) {
  Pair c;
  c.submit(1, 8, 4);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  c.gone(c.decode);
  c.pulls[c.decode].clear();
  c.turn();
  const StepPlan plan = c.sent<StepPlan>(c.prefill)[1];
  ASSERT_EQ(plan.rows.size(), 1U);
  EXPECT_EQ(plan.rows[0].n_tokens, 0U);
  EXPECT_TRUE(plan.rows[0].then_decode);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 4U);
}

TEST(Handoff, APromptThatFitsNoDecodeWorkerDoesNotBlockTheOthers) {
  Pair c({}, /*decode_blocks=*/3);
  Submit big = c.request(1, 30, 5);
  big.again = true;         // accepted when another pool was there ...
  c.state.started = c.now;  // ... by a scheduler whose successor this one is
  c.state.workers[1].peer.state = WorkerState::fenced;
  c.from_frontend(c.frontend, big);
  c.state.settings.no_decode = NoDecode::wait;
  c.turn();
  c.answer(c.prefill);
  c.state.workers[1].peer.state = WorkerState::ready;
  c.submit(2, 4, 3);
  c.run();
  EXPECT_EQ(c.terminal(1), nullptr) << "the worker that could hold it may come back";
  EXPECT_EQ(c.tokens_of(2), 3U);
  c.wait(kWaitForPools);
  c.turn();
  EXPECT_EQ(c.code(1), ErrorCode::kv_exhausted);
}

TEST(Handoff, TheTerminalTellsWhenThePhasesWere) {
  Pair c(chunks_of(6));
  Submit asked = c.request(1, 14, 3);
  asked.lifetime = true;
  c.from_frontend(c.frontend, asked);
  c.submit(2, 14, 3);
  const TimeNs start = c.now;
  const auto later = [&] { c.now += kMillisecond; };
  later();
  c.turn();  // the first chunk
  for (int chunk = 0; chunk < 3; ++chunk) {
    later();
    c.answer(c.prefill);
    c.turn();
  }
  later();
  while (!c.pulls[c.decode].empty()) c.done_pull(c.decode);
  later();
  c.run();
  ASSERT_NE(c.terminal(1), nullptr);
  // Blocks of the first chunk are pulled when it has ended.
  std::vector<TimeNs> moments;
  for (const TimeNs moment : c.terminal(1)->lifetime)
    moments.push_back((moment - start) / kMillisecond);
  EXPECT_EQ(moments, (std::vector<TimeNs>{1, 4, 2, 5, 6}));
  EXPECT_TRUE(c.terminal(2)->lifetime.empty()) << "it did not ask";
}

TEST(Handoff, WithoutOneNothingMigrates) {
  Cluster c;
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  Submit asked = c.request(1, 4, 2);
  asked.lifetime = true;
  c.from_frontend(c.frontend, asked);
  c.turn();
  c.answer(mixed);
  c.run();
  ASSERT_EQ(c.terminal(1)->lifetime.size(), kLifetimeMoments);
  EXPECT_NE(c.terminal(1)->lifetime[0], 0);
  EXPECT_NE(c.terminal(1)->lifetime[1], 0);
  for (std::size_t i = 2; i < kLifetimeMoments; ++i) EXPECT_EQ(c.terminal(1)->lifetime[i], 0);
}

// ---- worker.check_pulls

/// A pair whose workers tell checksums; a prompt of 14 tokens has been computed in blocks whose
/// sums are 1000 and more, the first one's unknown.
struct Checked : Pair {
  Checked() {
    state.settings.prefix_cache = true;
    for (const char* name : {"prefill0", "decode0"}) worker(name).store.offer.tells_sums = true;
    submit(1, 14);
    compute();
  }
  void compute() {
    turn();
    Worker& w = worker("prefill0");
    StepResult result = result_of(w);
    const Sequence& source = *state.sequences.find(find(1)->source);
    for (std::size_t i = 1; i < 4; ++i) {
      result.summed.push_back(source.tail().blocks[i]);
      result.sums.push_back(1000 + source.tail().blocks[i]);
    }
    from_worker(prefill, result);
    turn();
  }
  void damage() {
    ASSERT_EQ(pulls[decode].size(), 1U);
    const Pull pull = pulls[decode].front();
    pulls[decode].pop_front();
    from_worker(decode, PullFailed{pull.term, pull.pull_id, "test", {pull.from[1]}});
  }
};

TEST(CheckedPulls, NameTheSumsThatAreKnownAndPassThemOn) {
  Checked c;
  ASSERT_EQ(c.pulls[c.decode].size(), 1U);
  const Pull pull = c.pulls[c.decode].front();
  ASSERT_EQ(pull.from.size(), 4U);
  const std::vector<std::uint64_t> sums = {0, 1000 + pull.from[1], 1000 + pull.from[2],
                                           1000 + pull.from[3]};
  EXPECT_EQ(pull.sums, sums);
  c.worker("decode0").store.sums[pull.to[0]] = 5;  // of what lay there before
  c.done_pull(c.decode);
  EXPECT_EQ(c.worker("decode0").store.sums.count(pull.to[0]), 0U);
  EXPECT_EQ(c.worker("decode0").store.sums.at(pull.to[3]), sums[3]);
}

TEST(CheckedPulls, WithoutSumsNothingIsCompared) {
  Pair c;
  c.submit(1, 14);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  ASSERT_EQ(c.pulls[c.decode].size(), 1U);
  EXPECT_TRUE(c.pulls[c.decode].front().sums.empty());
}

TEST(CheckedPulls, ASumOfNoBlockEndsTheTerm) {
  Checked c;
  Worker& w = c.worker("prefill0");
  c.submit(2, 14);
  c.turn();
  StepResult result = c.result_of(w);
  result.summed = {w.store.offer.blocks};
  result.sums = {1};
  c.from_worker(c.prefill, result);
  EXPECT_FALSE(w.ready());
}

TEST(CheckedPulls, ADamagedBlockIsForgottenAndThePromptComputedAgain) {
  Checked c;
  const Pull pull = c.pulls[c.decode].front();
  const BlockPool& pool = c.worker("prefill0").store.pool;
  EXPECT_TRUE(pool.remembers(pull.from[1]));
  c.damage();
  EXPECT_EQ(c.state.counters.damaged_blocks, 1U);
  EXPECT_FALSE(pool.remembers(pull.from[1]));
  EXPECT_TRUE(pool.remembers(pull.from[0]));
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.find(1)->generated.size(), 1U);  // the token that it had stays
  c.run();
  EXPECT_EQ(c.phase(1), Phase::ended);
  EXPECT_EQ(c.state.counters.handoffs, 1U);
  for (const char* name : {"prefill0", "decode0"}) {
    EXPECT_EQ(c.pool(name).owned + c.pool(name).fenced, 0U) << name;
  }
}

TEST(CheckedPulls, DamagedAgainAndAgainItEndsWithAnError) {
  Checked c;
  for (int i = 0; i < 2; ++i) {
    c.damage();
    ASSERT_EQ(c.phase(1), Phase::waiting);
    c.compute();
  }
  c.damage();
  ASSERT_EQ(c.phase(1), Phase::ended);
  EXPECT_EQ(c.find(1)->reason, FinishReason::error);
}

}  // namespace
}  // namespace baton::test
