// A request over several workers: where its extents lie, who runs it, and what takes it off them.
#include "scheduler/plan/elastic.h"

#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/apply/reachability.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings elastic_settings() {
  Settings settings;
  settings.elastic = true;
  settings.elastic_gather = false;
  return settings;
}

/// Three mixed workers with pools of 6, 5 and 4 blocks of 4 tokens.
class Elastic : public testing::Test {
 protected:
  explicit Elastic(bool prefix_cache = false, std::uint32_t host_blocks = 0)
      : c(elastic_settings(), prefix_cache) {
    links = {join("w0", 6, 1, false, host_blocks), join("w1", 5), join("w2", 4)};
  }
  LinkId join(const std::string& name, std::uint32_t blocks, Incarnation incarnation = 1,
              bool leased = false, std::uint32_t host_blocks = 0) {
    const LinkId link = c.register_worker(name, Role::mixed, incarnation);
    close_all();
    Hello hello = Cluster::hello_of(name, blocks, incarnation, host_blocks);
    hello.reads_in_place = true;
    hello.leased = leased;
    c.from_worker(link, hello);
    return link;
  }
  /// Everybody closes what he is asked to.
  void close_all() {
    const auto sent = c.to_workers;
    for (const auto& [to, message] : sent) {
      if (const auto* close = std::get_if<Close>(&message))
        c.from_worker(to, Closed{close->allocation});
    }
  }
  /// Plans and answers until the request has so many tokens.
  void run_to(std::uint64_t counter, std::size_t tokens) {
    for (int i = 0; i < 400 && c.tokens_of(counter) < tokens; ++i) {
      c.turn();
      for (Worker& w : c.state.workers) {
        if (w.ready() && !w.compute.steps.empty()) c.answer(w.peer.link);
      }
    }
    ASSERT_EQ(c.tokens_of(counter), tokens);
  }
  void step() {
    c.turn();
    for (Worker& w : c.state.workers) {
      if (w.ready() && !w.compute.steps.empty()) c.answer(w.peer.link);
    }
  }
  /// Whether each has said that it can read the others' pools.
  void set_readers(bool readable) {
    for (Worker& w : c.state.workers) {
      for (const Worker& other : c.state.workers) {
        if (&w == &other) continue;
        readable ? void(w.peer.readable.insert(other.store.allocation()))
                 : void(w.peer.readable.erase(other.store.allocation()));
      }
    }
  }
  std::vector<StoreIndex> stores(std::uint64_t counter) {
    std::vector<StoreIndex> found;
    for (const Extent& extent : c.source(counter).extents) found.push_back(extent.store);
    return found;
  }
  std::uint32_t free_of(WorkerIndex worker) {
    return c.state.workers[worker].store.pool.free_blocks();
  }

  Cluster c;
  std::vector<LinkId> links;
};

/// Ranks on GPUs have a pool of their heads each: such blocks mean something to as many ranks
/// alone.
TEST_F(Elastic, WhatHasOtherHeadsIsNotShared) {
  const std::vector<PoolRank> ranks = {{"GPU-0", "a"}, {"GPU-1", "b"}};
  c.state.workers[0].store.offer.ranks = ranks;
  EXPECT_FALSE(may_read_in_place(c.state, c.state.workers[0], c.state.workers[1]));
  EXPECT_FALSE(may_read_in_place(c.state, c.state.workers[1], c.state.workers[0]));
  EXPECT_TRUE(may_read_in_place(c.state, c.state.workers[1], c.state.workers[2]));
  EXPECT_LT(max_context(c.state), 60U);
  for (Worker& worker : c.state.workers) worker.store.offer.ranks = ranks;
  EXPECT_TRUE(may_read_in_place(c.state, c.state.workers[0], c.state.workers[1]));
  EXPECT_EQ(max_context(c.state), 60U);
}

TEST_F(Elastic, TheContextIsTheSumOfThePools) {
  EXPECT_EQ(max_context(c.state), 60U);
  EXPECT_EQ(largest_context(c.state), 24U);
  c.state.settings.elastic_degree = 2;
  EXPECT_EQ(max_context(c.state), 44U);
  c.state.settings.elastic = false;
  EXPECT_EQ(max_context(c.state), 24U);
}

TEST_F(Elastic, APoolOfMoreTokensThan32BitsCount) {
  c.state.workers[0].store.offer.blocks = 1U << 30U;
  c.state.workers[1].store.offer.blocks = 1U << 30U;
  EXPECT_EQ(context_around(c.state, 0), 1024U) << "what the model allows";
}

TEST_F(Elastic, APromptOfAllPoolsIsComputedWhereItStays) {
  c.submit(1, 55, 4);
  run_to(1, 1);
  EXPECT_EQ(stores(1), (std::vector<StoreIndex>{0, 1, 2}));
  EXPECT_EQ(c.source(1).extents[1].first_token, 24U);
  EXPECT_EQ(c.source(1).extents[2].first_token, 44U);
  run_to(1, 4);
  EXPECT_EQ(c.state.counters.growths, 2U);
  EXPECT_EQ(c.state.counters.growth_blocks_moved, 0U);
  EXPECT_EQ(c.state.counters.computed_tokens, 55U);
  // The third worker was told where the first 44 tokens lie.
  const std::vector<StepPlan> plans = c.sent<StepPlan>(links[2]);
  ASSERT_FALSE(plans.empty());
  ASSERT_EQ(plans[0].add.size(), 1U);
  const AddSequence& add = plans[0].add[0];
  EXPECT_EQ(add.computed, 44U);
  ASSERT_EQ(add.before.size(), 2U);
  EXPECT_EQ(add.before[0].blocks.size(), 6U);
  EXPECT_EQ(add.before[1].allocation, c.state.store(1).allocation());
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(free_of(0), 6U);
  EXPECT_EQ(free_of(1), 5U);
  EXPECT_EQ(free_of(2), 4U);
}

TEST_F(Elastic, WhatNoSetOfPoolsHoldsIsRefused) {
  c.now += 60 * kSecond;  // the scheduler is no longer young
  for (const LinkId link : links) c.heartbeat(link);
  c.submit(1, 60, 4);
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
  c.submit(2, 58, 100);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(2), 2U);  // up to the end of all pools
}

/// Its workers join one after another: what the first ones hold is not all that it may have.
TEST_F(Elastic, AYoungSchedulerCutsNoReplyShort) {
  c.gone(links[1]);
  c.gone(links[2]);
  c.state.workers[1].store.last_context = c.state.workers[2].store.last_context = 0;
  c.state.started = c.now;
  c.submit(1, 4, 40);
  run_to(1, 3);
  links[1] = join("w1", 5, 2);
  links[2] = join("w2", 4, 2);
  run_to(1, 40);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST_F(Elastic, AReplyThatFillsAllPoolsOfAYoungSchedulerEndsThere) {
  c.state.started = c.now;
  c.submit(1, 50, 100);
  run_to(1, 10);
  c.wait(11 * kSecond);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.terminal(1)->reason[0], static_cast<std::uint32_t>(FinishReason::length));
}

TEST_F(Elastic, AReplyGrowsIntoAnotherPoolBeforeAnybodyIsPreempted) {
  c.submit(1, 4, 50);
  run_to(1, 50);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.state.counters.preemptions, 0U);
  EXPECT_EQ(c.state.counters.growths, 2U);
  EXPECT_EQ(c.state.counters.growth_blocks_moved, 0U);
  EXPECT_EQ(c.state.counters.computed_tokens, 4U) << "nothing is computed twice";
}

/// It is not cut short for it: w1 has not said yet that it can read what it needs.
TEST_F(Elastic, AReplyWaitsForAPoolThatIsBeingMapped) {
  c.now += 60 * kSecond;  // the scheduler is no longer young
  for (const LinkId link : links) c.heartbeat(link);
  set_readers(false);
  c.submit(1, 4, 40);
  for (int i = 0; i < 30; ++i) step();
  EXPECT_EQ(c.phase(1), Phase::decode);
  EXPECT_EQ(c.state.counters.growths, 0U);
  set_readers(true);
  run_to(1, 40);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_GE(c.state.counters.growths, 1U);
}

TEST_F(Elastic, OffItIsPreempted) {
  c.state.settings.elastic = false;
  c.state.proven_context = 0;
  c.submit(1, 55, 4);
  c.run();
  c.wait(11 * kSecond);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
}

TEST_F(Elastic, ALostExtentMeansComputingAgain) {
  c.submit(1, 55, 5);
  run_to(1, 2);
  c.turn();
  c.gone(links[0]);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(free_of(1) + c.state.workers[1].store.pool.fenced_blocks(), 5U);
  links[0] = join("w0", 6, 2);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 5U);
}

TEST_F(Elastic, SoDoesTheLossOfItsMaster) {
  c.submit(1, 55, 5);
  run_to(1, 2);
  c.gone(links[2]);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(free_of(0), 6U);
  EXPECT_EQ(free_of(1), 5U);
  links[2] = join("w2", 4, 2);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
}

TEST_F(Elastic, AKeptPoolIsReadOnWhileItsWorkerIsAway) {
  c.gone(links[0]);
  links[0] = join("w0", 6, 2, /*leased=*/true);
  c.submit(1, 55, 5);
  run_to(1, 2);
  ASSERT_EQ(stores(1)[0], 0U);
  c.gone(links[0]);
  EXPECT_EQ(c.phase(1), Phase::decode);
  run_to(1, 4);
  c.wait(6 * kSecond);  // nobody comes back: the pool is given up
  EXPECT_EQ(c.phase(1), Phase::waiting);
}

TEST_F(Elastic, BlocksThatAStepReadsAreNobodysBeforeItHasEnded) {
  c.submit(1, 55, 5);
  run_to(1, 2);
  c.turn();
  ASSERT_FALSE(c.state.workers[2].compute.steps.empty());
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  EXPECT_EQ(free_of(0), 0U);
  EXPECT_TRUE(is_read_by_others(c.state, 0));
  while (!c.state.workers[2].compute.steps.empty()) c.answer(links[2]);
  EXPECT_EQ(free_of(0), 6U);
  EXPECT_FALSE(is_read_by_others(c.state, 0));
}

/// Of two steps in flight that read another worker's blocks, the second one's end frees them.
TEST_F(Elastic, TheLastStepThatReadsABlockFreesIt) {
  c.submit(1, 55, 5);
  run_to(1, 1);
  c.turn();
  ASSERT_EQ(c.state.workers[2].compute.steps.size(), 2U);
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  c.answer(links[2]);
  EXPECT_EQ(free_of(0), 0U);
  EXPECT_EQ(free_of(1), 0U);
  EXPECT_TRUE(is_read_by_others(c.state, 0));
  EXPECT_TRUE(is_read_by_others(c.state, 1));
  c.answer(links[2]);
  EXPECT_EQ(free_of(0), 6U);
  EXPECT_EQ(free_of(1), 5U);
}

TEST_F(Elastic, ATermThatEndsReadsNoMore) {
  c.submit(1, 55, 5);
  run_to(1, 2);
  c.turn();
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  c.gone(links[2]);
  EXPECT_EQ(free_of(0), 6U);
}

TEST_F(Elastic, AWorkerThatCannotReadAPoolTakesNoPart) {
  c.state.workers[2].peer.readable.clear();
  EXPECT_EQ(context_around(c.state, 0), 44U);
  c.submit(1, 40, 3);
  run_to(1, 1);
  EXPECT_EQ(stores(1), (std::vector<StoreIndex>{0, 1}));
}

TEST_F(Elastic, APoolThatWasClosedIsAskedForAgain) {
  const Worker& w = c.state.workers[1];
  c.from_worker(links[1], Closed{c.state.store(0).allocation()});
  EXPECT_FALSE(reads_in_place(w, c.state.workers[0]));
  c.tick();
  EXPECT_TRUE(reads_in_place(w, c.state.workers[0]));
}

TEST_F(Elastic, ALossIsToldWhereItWas) {
  c.submit(1, 55, 5);
  run_to(1, 2);
  c.gone(links[1]);
  links[1] = join("w1", 5, 2);
  c.run();
  ASSERT_FALSE(c.timings[1].empty());
  std::vector<std::string> moves;
  for (const Move& move : c.timings[1].back().moves)
    moves.emplace_back(to_string(static_cast<MoveCause>(move.cause)));
  EXPECT_EQ(moves, (std::vector<std::string>{"grew", "grew", "died", "grew", "grew"}));
}

TEST_F(Elastic, ARowThatFindsAPoolUnmappedIsComputedAgain) {
  c.submit(1, 40, 3);
  run_to(1, 1);
  c.turn();
  Worker& w = c.state.workers[1];
  ASSERT_FALSE(w.compute.steps.empty());
  const SequenceId id = c.find(1)->source;
  c.answer_probes = false;
  while (!w.compute.steps.empty()) {
    StepResult result = c.result_of(w);
    result.sequences.clear();
    result.tokens.clear();
    result.failed.push_back({id, "not mapped", true});
    if (c.find(1)->source != id) result.failed.clear();
    c.from_worker(links[1], result);
  }
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_FALSE(reads_in_place(w, c.state.workers[0]));
  ASSERT_EQ(c.probes.size(), 1U) << "it is asked again";
  c.answer_probes = true;
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
}

TEST_F(Elastic, ADrainingWorkerIsLeftByWhatOthersRun) {
  c.submit(1, 55, 5);
  run_to(1, 2);
  c.heartbeat(links[0], /*draining=*/true);
  EXPECT_EQ(c.phase(1), Phase::decode);
  c.tick(c.state.settings.drain + kSecond);
  EXPECT_NE(c.phase(1), Phase::decode);
}

/// Nobody can map another's pool any more.
void cut_off(Cluster& c, TimeNs how_long) {
  for (Worker& w : c.state.workers) {
    for (const Worker& other : c.state.workers) {
      if (&w == &other) continue;
      w.peer.unreachable[other.store.allocation()] = c.now + how_long;
      w.peer.readable.erase(other.store.allocation());
    }
  }
}

TEST_F(Elastic, FrontEndsHearAtOnceThatPoolsCanBeReadAgain) {
  const auto told = [&] { return c.told<FrontendWelcome>(c.frontend); };
  EXPECT_EQ(told().back().max_context, 60U) << "of 6, 5 and 4 blocks";
  cut_off(c, kSecond);
  c.state.proven_context = 0;  // nor could anybody before
  c.from_frontend(c.frontend, FrontendHeartbeat{c.state.epoch, {}, {}, {}});
  EXPECT_EQ(told().back().max_context, 24U) << "of 6";
  const std::size_t before = told().size();
  c.tick(2 * kSecond);
  for (const LinkId link : links) c.heartbeat(link);
  c.turn();
  ASSERT_GT(told().size(), before);
  EXPECT_EQ(told().back().max_context, 60U);
}

TEST_F(Elastic, WhatPoolsHaveHeldTogetherWaitsWhileTheyCannotBeRead) {
  c.wait(60 * kSecond);  // the scheduler is no longer young
  cut_off(c, 3 * kSecond);
  c.tick();
  EXPECT_EQ(max_context(c.state), 24U);
  c.submit(1, 50, 4);
  for (int i = 0; i < 20; ++i) {
    c.wait(100 * kMillisecond);
    c.turn();
  }
  EXPECT_EQ(c.terminal(1), nullptr);
  EXPECT_EQ(c.told<FrontendWelcome>(c.frontend).back().max_context, 60U);
  c.wait(2 * kSecond);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 4U);
}

/// While a worker is away, an operator says of another one what it does already.
TEST_F(Elastic, WhatPoolsHaveHeldTogetherIsForgottenOnlyWhenAWorkerIsTakenAway) {
  c.wait(60 * kSecond);
  c.gone(links[1]);
  c.event(SetDraining{"w0", false});
  c.event(SetRole{"w0", Role::mixed});
  c.submit(1, 50, 4);
  for (int i = 0; i < 60 && c.terminal(1) == nullptr; ++i) {
    c.wait(500 * kMillisecond);
    c.turn();
  }
  EXPECT_EQ(c.code(1), ErrorCode::unavailable);
}

TEST_F(Elastic, WhatPoolsHaveHeldTogetherIsUnavailableWhenTheyStayAway) {
  c.wait(60 * kSecond);
  c.submit(1, 50, 100);
  run_to(1, 3);
  c.gone(links[1]);
  const auto pass = [&](TimeNs time) {
    for (TimeNs end = c.now + time; c.now < end;) {
      c.wait(500 * kMillisecond);
      c.turn();
    }
  };
  pass(kSecond);
  c.submit(2, 50, 4);
  pass(8 * kSecond);
  EXPECT_EQ(c.terminal(1), nullptr);
  EXPECT_EQ(c.terminal(2), nullptr);
  pass(15 * kSecond);
  EXPECT_EQ(c.code(1), ErrorCode::unavailable);
  EXPECT_EQ(c.code(2), ErrorCode::unavailable);
  c.submit(3, 50, 4);
  pass(11 * kSecond);
  EXPECT_EQ(c.code(3), ErrorCode::unavailable);
  c.submit(4, 61, 4);  // no pools ever held that
  EXPECT_EQ(c.code(4), ErrorCode::too_long);
  links[1] = join("w1", 5, 2);
  c.submit(5, 50, 4);
  c.run();
  EXPECT_EQ(c.code(5), ErrorCode::ok);
}

/// Nobody had to read its pool for that.
TEST(ElasticPools, WhatOnePoolHasHeldIsUnavailableWhenItStaysAway) {
  Cluster c(elastic_settings());
  const auto join = [&](const std::string& name, std::uint32_t blocks) {
    const LinkId link = c.register_worker(name, Role::mixed);
    Hello hello = Cluster::hello_of(name, blocks);
    hello.reads_in_place = true;
    c.from_worker(link, hello);
    return link;
  };
  c.gone(join("w1", 10));
  c.wait(60 * kSecond);
  join("w0", 3);
  c.submit(1, 20, 4);
  for (int i = 0; i < 60 && c.terminal(1) == nullptr; ++i) {
    c.wait(500 * kMillisecond);
    c.turn();
  }
  EXPECT_EQ(c.code(1), ErrorCode::unavailable);
}

TEST_F(Elastic, WhatAnOperatorTakesAwayIsWaitedForByNobody) {
  c.wait(60 * kSecond);
  c.event(SetRole{"w0", Role::prefill});
  c.event(SetRole{"w1", Role::prefill});
  EXPECT_EQ(c.state.proven_context, 24U);
  c.submit(1, 50, 4);
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
}

TEST_F(Elastic, BeamsStayOnOneWorker) {
  Submit m = c.request(1, 40, 4);
  m.sampling.num_beams = 2;
  c.now += 60 * kSecond;
  for (const LinkId link : links) c.heartbeat(link);
  m.arrival = c.now;
  c.from_frontend(c.frontend, m);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
}

/// Growth in both directions, with others that want the room, too.
TEST_F(Elastic, UnderLoadEverybodyGetsAllTokens) {
  for (std::uint64_t i = 1; i <= 6; ++i) c.submit(i, static_cast<std::uint32_t>(3 * i), 30);
  c.submit(7, 50, 6);
  for (std::uint64_t i = 8; i <= 10; ++i) c.submit(i, 6, 20);
  c.run(4000);
  for (std::uint64_t i = 1; i <= 10; ++i) {
    EXPECT_EQ(c.code(i), ErrorCode::ok);
    EXPECT_EQ(c.tokens_of(i), i <= 6 ? 30U : i == 7 ? 6U : 20U) << i;
  }
  EXPECT_GT(c.state.counters.growths, 0U);
  EXPECT_EQ(free_of(0) + free_of(1) + free_of(2), 15U);
}

class ElasticCache : public Elastic {
 protected:
  ElasticCache() : Elastic(/*prefix_cache=*/true) {}
};

TEST_F(ElasticCache, TheFirstExtentIsFoundAgain) {
  c.submit(1, 55, 2);
  run_to(1, 2);
  c.run();
  c.submit(2, 20, 2);
  run_to(2, 2);
  EXPECT_EQ(c.cached[2], 16U);  // the last token is always computed
}

/// The first worker has a host tier.
class ElasticHost : public Elastic {
 protected:
  ElasticHost() : Elastic(/*prefix_cache=*/true, /*host_blocks=*/12) {
    c.state.settings.swap = Swap::always;
  }
  void ask(std::uint64_t counter, Token first, std::uint32_t length, std::uint32_t max_tokens) {
    Submit m = c.request(counter, length, max_tokens);
    std::iota(m.prompt.begin(), m.prompt.end(), first);
    c.from_frontend(c.frontend, m);
  }
};

/// All that the first worker would compute lies in its host tier: the sequence goes on at the next
/// one once the copies have ended, not before.
TEST_F(ElasticHost, ASequenceMovesOnWhenItsHostCopiesHaveEnded) {
  ask(1, 100, 55, 2);
  run_to(1, 2);
  c.run();
  ask(2, 300, 22, 1);  // takes the first worker's blocks, whose contents go to the host tier
  c.run();
  ask(3, 100, 55, 2);
  c.turn();
  const Sequence& sequence = c.source(3);
  ASSERT_EQ(sequence.worker, 0U);
  ASSERT_EQ(sequence.inflight, 0U);
  ASSERT_GT(c.worker("w0").store.pool.target_pins(sequence.tail().blocks.front()), 0U);
  for (int turn = 0; turn < 3; ++turn) c.turn();
  EXPECT_EQ(c.source(3).worker, 0U);
  EXPECT_TRUE(c.state.workers[1].compute.steps.empty());
  c.answer(links[0]);
  c.turn();
  EXPECT_EQ(c.source(3).worker, 1U);
  c.run();
  EXPECT_EQ(c.code(3), ErrorCode::ok);
}

}  // namespace
}  // namespace baton::test
