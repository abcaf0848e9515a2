// Prompts whose beginning another worker's pool holds: pulled, and whatever happens meanwhile.
#include "tests/unit/scheduler/cached_cluster.h"

namespace baton::test {
namespace {

Settings pulls_from(std::uint32_t tokens) {
  Settings settings;
  settings.prefix_pull_tokens = tokens;
  return settings;
}

/// A pair after the first turn of a chat: prefill0 knows the 2 full blocks of its prompt, decode0
/// these and the 2 of the answer that follow. The second turn has 20 tokens, 16 of them in these 4
/// blocks.
struct Chat : Cached {
  explicit Chat(std::uint32_t worth = 4)
      : Cached(pulls_from(worth)),
        prefill(ready_worker("prefill0", Role::prefill)),
        decode(ready_worker("decode0", Role::decode)) {
    ask(1, words(9), 8);
    run();
    second = words(9);
    second.insert(second.end(), 8, kWord);
    second.insert(second.end(), {70, 71, 72});
  }
  /// The second turn stands before its answered pull.
  void ask_second() {
    ask(2, second);
    turn();
    ASSERT_EQ(phase(2), Phase::pull);
    ASSERT_EQ(pulls[prefill].size(), 1U);
  }
  void expect_rest() {
    for (const char* name : {"prefill0", "decode0"}) {
      const PoolAudit audit = pool(name);
      EXPECT_EQ(audit.owned + audit.fenced, 0U) << name;
    }
    EXPECT_EQ(state.pulls.size(), 0U);
  }
  LinkId prefill;
  LinkId decode;
  std::vector<Token> second;
};

TEST(PrefixPull, TheNextTurnPullsWhatTheDecodeWorkerWrote) {
  Chat c;
  c.ask_second();
  const Pull pull = c.pulls[c.prefill].front();
  EXPECT_EQ(pull.allocation, c.worker("decode0").store.allocation());
  EXPECT_EQ(pull.from.size(), 2U);
  EXPECT_EQ(c.pool("decode0").fenced, 2U) << "what is read is given to nobody";
  EXPECT_EQ(c.worker("prefill0").compute.steps.size(), 0U) << "no row before its blocks are there";
  c.done_pull(c.prefill);
  c.turn();
  const AddSequence second = c.added(c.prefill, 1);
  EXPECT_EQ(second.computed, 16U);
  EXPECT_TRUE(std::equal(pull.to.begin(), pull.to.end(), second.blocks.begin() + 2));
  EXPECT_EQ(c.last_plan(c.prefill).rows.at(0).n_tokens, 4U);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 4U);
  EXPECT_EQ(c.state.counters.prefix_pulls, 1U);
  EXPECT_EQ(c.state.counters.cached_tokens, 8U);
  EXPECT_EQ(c.state.counters.pulled_prefix_tokens, 8U);
  EXPECT_EQ(c.cached[2], 16U);
  EXPECT_EQ(c.cached.count(1), 0U);
  EXPECT_EQ(c.state.counters.pulls_saved, 4U) << "the hand-off finds at decode0 what it wrote";
  c.expect_rest();
}

TEST(PrefixPull, WhatWasPulledIsFoundByTheNext) {
  Chat c;
  c.ask_second();
  c.run();
  c.ask(3, c.second);
  c.run();
  EXPECT_EQ(c.state.counters.prefix_pulls, 1U);
  EXPECT_EQ(c.added(c.prefill, 2).computed, 16U);
}

TEST(PrefixPull, TooLittleIsComputed) {
  for (const std::uint32_t worth : {0U, 9U}) {
    Chat c(worth);
    c.ask(2, c.second);
    c.run();
    EXPECT_EQ(c.state.counters.prefix_pulls, 0U);
    EXPECT_EQ(c.added(c.prefill, 1).computed, 8U);
    EXPECT_EQ(c.cached[2], 8U);
  }
}

TEST(PrefixPull, TwoThatBeginAlikePullOnce) {
  Chat c;
  c.ask_second();
  c.second.push_back(73);
  c.ask(3, c.second);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::waiting);
  EXPECT_EQ(c.pulls[c.prefill].size(), 1U);
  c.run();
  EXPECT_EQ(c.state.counters.prefix_pulls, 1U);
  EXPECT_EQ(c.added(c.prefill, 1).computed, 16U);
  EXPECT_EQ(c.added(c.prefill, 2).computed, 16U);
  c.expect_rest();
}

TEST(PrefixPull, WhatAPullReadsIsFoundByOthersMeanwhile) {
  Chat c;
  const LinkId other = c.ready_worker("prefill1", Role::prefill);
  c.ask_second();
  c.event(SetDraining{"prefill0", true});
  c.second.push_back(73);
  c.ask(3, c.second);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::pull);
  EXPECT_EQ(c.pulls[other].at(0).from.size(), 4U);
  c.run();
  EXPECT_EQ(c.tokens_of(3), 4U);
  c.expect_rest();
}

TEST(PrefixPull, AFailedPullIsComputedAndNotTriedAgain) {
  Chat c;
  c.ask_second();
  c.fail_pull(c.prefill);
  EXPECT_EQ(c.phase(2), Phase::prefill);
  c.turn();
  EXPECT_EQ(c.added(c.prefill, 1).computed, 8U);
  EXPECT_EQ(c.state.counters.pull_failures, 1U);
  c.event(SetDraining{"prefill0", true});
  c.wait(c.state.settings.drain + kSecond);
  c.event(SetDraining{"prefill0", false});
  c.run();
  EXPECT_EQ(c.state.counters.prefix_pulls, 1U);
  EXPECT_EQ(c.state.counters.pulled_prefix_tokens, 0U);
  EXPECT_EQ(c.tokens_of(2), 4U);
  c.expect_rest();
}

TEST(PrefixPull, TheSourceDies) {
  for (const bool arrives : {true, false}) {
    Chat c;
    c.ask_second();
    c.gone(c.decode);
    EXPECT_EQ(c.phase(2), Phase::pull) << "a mapping outlives its exporter";
    arrives ? c.done_pull(c.prefill) : c.fail_pull(c.prefill);
    c.run();
    EXPECT_EQ(c.added(c.prefill, 1).computed, arrives ? 16U : 8U);
    EXPECT_EQ(c.tokens_of(2), 4U);
  }
}

TEST(PrefixPull, TheSourcesTermEnds) {
  Chat c;
  c.ask_second();
  Hello again = Cluster::hello_of("decode0", 100);
  again.hello_id = 2;
  c.from_worker(c.decode, again);
  EXPECT_EQ(c.pool("decode0").fenced, 2U) << "still read";
  EXPECT_EQ(c.pool("decode0").cached, 0U);
  c.run();
  EXPECT_EQ(c.added(c.prefill, 1).computed, 16U);
  EXPECT_EQ(c.tokens_of(2), 4U);
  c.expect_rest();
}

TEST(PrefixPull, TheTargetDies) {
  Chat c;
  c.ask_second();
  c.gone(c.prefill);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  EXPECT_EQ(c.pool("decode0").fenced, 0U);
  EXPECT_EQ(c.pool("decode0").cached, 4U);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 4U);
  EXPECT_EQ(c.find(2)->deaths.of(Stage::pull),
            1U);  // it may have been the pull: no other one was tried
  EXPECT_EQ(c.state.counters.prefix_pulls, 1U);
}

TEST(PrefixPull, TheTargetsTermEnds) {
  Chat c;
  c.ask_second();
  Hello again = Cluster::hello_of("prefill0", 100);
  again.hello_id = 2;
  c.from_worker(c.prefill, again);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.pulls[c.prefill].clear();  // its answer would be of the ended term
  c.turn();
  ASSERT_EQ(c.pulls[c.prefill].size(), 1U);
  EXPECT_EQ(c.pulls[c.prefill].front().from.size(), 4U) << "its own cache began anew";
  c.run();
  EXPECT_EQ(c.tokens_of(2), 4U);
  c.expect_rest();
}

TEST(PrefixPull, ItsClientLeaves) {
  Chat c;
  c.ask_second();
  c.from_frontend(c.frontend, Cancel{{1, 2}});
  EXPECT_EQ(c.pool("prefill0").owned, 0U);
  EXPECT_EQ(c.pool("prefill0").fenced, 2U) << "still written";
  c.done_pull(c.prefill);
  EXPECT_EQ(c.pool("prefill0").cached, 2U) << "nobody enters what was pulled for nobody";
  c.expect_rest();
}

TEST(PrefixPull, ItsDeadlinePasses) {
  Chat c;
  Submit m = c.request(2, 0, 4);
  m.prompt = c.second;
  m.deadline = c.now + kSecond;
  c.from_frontend(c.frontend, m);
  c.turn();
  ASSERT_EQ(c.phase(2), Phase::pull);
  c.wait(2 * kSecond);
  EXPECT_EQ(c.code(2), ErrorCode::deadline_exceeded);
  c.done_pull(c.prefill);
  c.expect_rest();
}

TEST(PrefixPull, ItIsTakenOffADrainingWorker) {
  Chat c;
  c.ask_second();
  c.event(SetDraining{"prefill0", true});
  c.wait(c.state.settings.drain + kSecond);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  EXPECT_EQ(c.pool("prefill0").fenced, 2U);
  c.done_pull(c.prefill);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 4U) << "decode0 computes it";
  c.expect_rest();
}

TEST(PrefixPull, ADrainingWorkersPoolIsLeftAlone) {
  Chat c;
  c.event(SetDraining{"decode0", true});
  c.ask(2, c.second);
  c.run();
  EXPECT_EQ(c.state.counters.prefix_pulls, 0U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

TEST(PrefixPull, OneThatKilledWorkersRunsAlone) {
  Chat c;
  c.ask(2, c.second);
  c.make_suspect(2);
  c.run();
  EXPECT_EQ(c.state.counters.prefix_pulls, 0U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

TEST(PrefixPull, ItIsPulledFromAWorkerThatIsBusy) {
  Settings settings = pulls_from(8);
  settings.token_budget = settings.prompt_chunk = 8;
  Cached c(settings);
  c.ready_worker("mixed0", Role::mixed);
  const LinkId busy = c.ready_worker("mixed1", Role::mixed);
  c.event(SetDraining{"mixed0", true});
  c.ask(1, words(40), 4);
  c.run();
  c.ask(2, words(100, 300), 4);
  c.turn();
  c.event(SetDraining{"mixed0", false});
  ASSERT_FALSE(c.worker("mixed1").compute.prefills.empty());
  c.ask(3, words(41), 4);
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::pull);
  c.run();
  EXPECT_EQ(c.tokens_of(3), 4U);
  EXPECT_EQ(c.added(busy, 0).prompt, words(40));
  EXPECT_EQ(c.state.counters.pulled_prefix_tokens, 40U);
}

TEST(PrefixPull, PoolsThatCannotBeReadAreNamedAndLeftAlone) {
  Cached c(pulls_from(4));
  c.answer_probes = false;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  ASSERT_EQ(c.probes.size(), 2U) << "each is asked about the other";
  for (const auto& [link, pull] : std::exchange(c.probes, {})) {
    if (link == decode) c.from_worker(link, PullDone{pull.term, pull.pull_id, 1});
    if (link == prefill)
      c.from_worker(link, PullFailed{pull.term, pull.pull_id, "no peer access", {}});
  }
  EXPECT_TRUE(
      c.logged("prefill0 () and decode0 () cannot reach each other: no peer access; the first"));
  c.ask(1, words(9), 8);
  c.run();
  EXPECT_EQ(c.state.counters.handoffs, 1U);
  std::vector<Token> second = words(9);
  second.insert(second.end(), 8, kWord);
  c.ask(2, second);
  c.run();
  EXPECT_EQ(c.state.counters.prefix_pulls, 0U);
  EXPECT_EQ(c.added(prefill, 1).computed, 8U);
  EXPECT_EQ(c.tokens_of(2), 4U);
}

}  // namespace
}  // namespace baton::test
