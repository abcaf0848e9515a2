// A prompt that several workers compute at the same time: how it is dealt out, what each is told,
// in which order results count, and what a loss at any place does.
#include "scheduler/plan/spread.h"

#include <gtest/gtest.h>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

std::vector<std::pair<WorkerIndex, std::uint32_t>> dealt(const std::vector<SpreadChunk>& chunks) {
  std::vector<std::pair<WorkerIndex, std::uint32_t>> found;
  for (const SpreadChunk& chunk : chunks) found.emplace_back(chunk.worker, chunk.tokens);
  return found;
}
using Dealt = std::vector<std::pair<WorkerIndex, std::uint32_t>>;

TEST(Deal, ChunksGoRoundInTurns) {
  EXPECT_EQ(dealt(deal({{3, 10}, {5, 10}}, 0, 36, 8, 4)),
            (Dealt{{3, 8}, {5, 8}, {3, 8}, {5, 8}, {3, 4}}));
  EXPECT_EQ(deal({{3, 10}, {5, 10}}, 8, 24, 8, 4).back().first, 16U);
}

TEST(Deal, WhoIsFullIsPassedOver) {
  EXPECT_EQ(dealt(deal({{0, 6}, {1, 2}}, 0, 32, 8, 4)), (Dealt{{0, 8}, {1, 8}, {0, 8}, {0, 8}}));
  EXPECT_TRUE(deal({{0, 4}, {1, 2}}, 0, 32, 8, 4).empty()) << "there is no room";
  EXPECT_TRUE(deal({{0, 1}, {1, 20}}, 0, 32, 8, 4).empty()) << "the first one has none";
}

TEST(Deal, AChunkIsWholeBlocksHoweverSmallItShouldBe) {
  EXPECT_EQ(dealt(deal({{0, 9}, {1, 9}}, 0, 12, 3, 4)), (Dealt{{0, 4}, {1, 4}, {0, 4}}));
}

/// Three mixed workers with pools of 12 blocks of 4 tokens; prompts of 20 tokens and more are
/// spread in chunks of 8.
struct ThreeWorkers {
  static Settings settings() {
    Settings settings;
    settings.elastic = true;
    settings.elastic_gather = false;
    settings.elastic_prompt_tokens = 20;
    settings.prompt_chunk = 8;
    return settings;
  }
  explicit ThreeWorkers(bool leased = false) : c(settings()) {
    for (const char* name : {"w0", "w1", "w2"}) links.push_back(join(name, 1, leased));
  }
  LinkId join(const std::string& name, Incarnation incarnation = 1, bool leased = false) {
    const LinkId link = c.register_worker(name, Role::mixed, incarnation);
    const auto sent = c.to_workers;
    for (const auto& [to, message] : sent) {
      if (const auto* close = std::get_if<Close>(&message))
        c.from_worker(to, Closed{close->allocation});
    }
    Hello hello = Cluster::hello_of(name, 12, incarnation);
    hello.reads_in_place = true;
    hello.leased = leased;
    hello.progress_handle = name + "." + std::to_string(incarnation);
    c.from_worker(link, hello);
    return link;
  }
  /// The oldest step of a worker ends, with its row having waited in vain.
  void fail(WorkerIndex worker) {
    const Worker& w = c.state.workers[worker];
    StepResult result = c.result_of(w);
    for (const auto& [id, n] : w.compute.steps.front().rows)
      result.failed.push_back({id, "nobody came", false, true});
    c.from_worker(links[worker], result);
  }
  void finish(std::uint64_t counter, std::size_t tokens) {
    c.run(4000);
    ASSERT_NE(c.terminal(counter), nullptr);
    EXPECT_EQ(c.code(counter), ErrorCode::ok);
    EXPECT_EQ(c.tokens_of(counter), tokens);
    for (const Worker& w : c.state.workers) {
      if (w.ready()) {
        EXPECT_EQ(w.store.pool.free_blocks(), 12U) << w.name();
      }
    }
  }

  Cluster c;
  std::vector<LinkId> links;
};

class SpreadPrompt : public testing::Test, public ThreeWorkers {};

TEST_F(SpreadPrompt, EachWorkerIsToldWhatItComputesAndWhomItWaitsFor) {
  c.submit(1, 43, 3);
  c.turn();
  const Spread& spread = *c.source(1).spread;
  EXPECT_EQ(dealt(spread.chunks), (Dealt{{0, 8}, {1, 8}, {2, 8}, {0, 8}, {1, 8}}));
  EXPECT_EQ(spread.next, 5U) << "two steps a worker are in flight";
  const std::vector<StepPlan> first = c.sent<StepPlan>(links[0]);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_TRUE(first[0].waits.empty());
  EXPECT_EQ(first[0].add.at(0).blocks.size(), 2U);
  // Its second chunk lies behind those of the two others, and it waits for the last one of them.
  ASSERT_EQ(first[1].elsewhere.size(), 2U);
  EXPECT_EQ(first[1].elsewhere[0].part.allocation, c.state.store(1).allocation());
  EXPECT_EQ(first[1].elsewhere[1].part.allocation, c.state.store(2).allocation());
  EXPECT_EQ(first[1].grow_blocks.size(), 2U);
  ASSERT_EQ(first[1].waits.size(), 1U);
  EXPECT_EQ(first[1].waits[0].handle, "w2.1");
  EXPECT_EQ(first[1].waits[0].term, c.state.workers[2].peer.term);
  EXPECT_EQ(first[1].waits[0].step, 1U);
  const AddSequence third = c.sent<StepPlan>(links[2]).at(0).add.at(0);
  EXPECT_EQ(third.computed, 16U);
  ASSERT_EQ(third.before.size(), 2U);
  EXPECT_EQ(third.before[0].allocation, c.state.store(0).allocation());
  finish(1, 3);
  EXPECT_EQ(c.state.counters.spreads, 1U);
  EXPECT_EQ(c.state.counters.spread_chunks, 5U);
  EXPECT_EQ(c.state.counters.computed_tokens, 43U) << "nothing is computed twice";
  EXPECT_EQ(c.state.counters.growth_blocks_moved, 0U);
}

TEST_F(SpreadPrompt, OneChunkCountsWhenAllBeforeItDo) {
  c.submit(1, 43, 3);
  c.turn();
  c.answer(links[2]);
  c.answer(links[1]);
  EXPECT_EQ(c.source(1).computed, 0U);
  c.answer(links[1]);
  c.answer(links[0]);
  EXPECT_EQ(c.source(1).computed, 24U);
  ASSERT_TRUE(c.source(1).spread);
  c.answer(links[0]);
  EXPECT_EQ(c.source(1).computed, 40U);
  EXPECT_FALSE(c.source(1).spread) << "one worker goes on alone";
  c.turn();
  const StepPlan rest = c.sent<StepPlan>(links[0]).at(2);
  ASSERT_EQ(rest.rows.size(), 1U);
  EXPECT_EQ(rest.rows[0].n_tokens, 3U);
  EXPECT_EQ(rest.elsewhere.size(), 1U);
  EXPECT_TRUE(rest.waits.empty());
  EXPECT_EQ(c.last_plan(links[2]).drop.size(), 1U);
  finish(1, 3);
}

TEST_F(SpreadPrompt, WhatHasItsResultIsNotWaitedFor) {
  c.state.settings.steps_in_flight = 1;
  c.submit(1, 30, 3);
  c.turn();  // chunks 0, 1 and 2, one a worker
  c.answer(links[2]);
  ASSERT_EQ(c.source(1).spread->next, 3U);
  c.answer(links[0]);
  c.turn();
  EXPECT_TRUE(c.last_plan(links[0]).waits.empty());
  finish(1, 3);
}

TEST_F(SpreadPrompt, AShortPromptAndABusyClusterAreNotSpread) {
  c.submit(1, 19, 3);
  c.turn();
  EXPECT_FALSE(c.source(1).spread);
  c.run();
  EXPECT_EQ(c.state.counters.spreads, 0U);
  for (Worker& w : c.state.workers) w.store.offer.progress_handle.clear();
  c.submit(2, 30, 3);
  finish(2, 3);
  EXPECT_EQ(c.state.counters.spreads, 0U) << "nobody tells how far his steps are";
}

/// The prompt is answered up to some point, one worker is lost, and comes back.
void lose_one(bool leased, std::size_t victim, int answers) {
  ThreeWorkers t(leased);
  t.c.submit(1, 43, 3);
  t.c.turn();
  for (int i = 0; i < answers; ++i) {
    const std::size_t worker = static_cast<std::size_t>(i * 2 + 1) % 3;
    if (!t.c.state.workers[worker].compute.steps.empty()) t.c.answer(t.links[worker]);
    if (i % 3 == 2) t.c.turn();
  }
  const bool spread = t.c.find(1)->source != 0 && t.c.source(1).spread;
  t.c.gone(t.links[victim]);
  if (spread) {
    EXPECT_EQ(t.c.phase(1), Phase::waiting);
  }
  t.c.turn();
  t.links[victim] = t.join("w" + std::to_string(victim), 2, leased);
  t.finish(1, 3);
}

/// Each of its tokens would be late by a chunk. And where others are about, one worker is left to
/// them: here the one that decodes.
TEST_F(SpreadPrompt, WhoDecodesTakesNoPart) {
  c.submit(9, 4, 100);
  c.turn();
  c.answer(links[0]);
  ASSERT_EQ(c.source(9).worker, 0U);
  c.submit(1, 43, 3);
  c.turn();
  c.answer(links[0]);
  c.turn();
  ASSERT_TRUE(c.source(1).spread);
  for (const SpreadLane& lane : c.source(1).spread->lanes) EXPECT_NE(lane.worker, 0U);
}

TEST_F(SpreadPrompt, WhileOthersAreAboutOneWorkerIsLeftToThem) {
  c.submit(1, 43, 3);
  c.submit(2, 43, 3);
  c.turn();
  ASSERT_TRUE(c.source(1).spread);
  EXPECT_EQ(c.source(1).spread->lanes.size(), 2U);
  ASSERT_NE(c.state.sequences.find(c.state.requests.find(c.state.by_name.at({1, 2}))->source),
            nullptr)
      << "the other one has the third worker";
  EXPECT_EQ(c.source(2).worker, 2U);
}

TEST(SpreadPrompts, ALossOfAnyWorkerAtAnyTimeIsComputedAgain) {
  for (const bool leased : {false, true}) {
    for (std::size_t victim = 0; victim < 3; ++victim) {
      for (int answers = 0; answers < 8; ++answers) {
        SCOPED_TRACE(testing::Message() << victim << " after " << answers << " leased " << leased);
        lose_one(leased, victim, answers);
      }
    }
  }
}

TEST_F(SpreadPrompt, AWaitInVainIsNobodysFault) {
  c.submit(1, 43, 3);
  c.turn();
  fail(1);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.state.counters.spread_failures, 1U);
  EXPECT_TRUE(reads_in_place(c.state.workers[1], c.state.workers[0])) << "it can read it as before";
  EXPECT_EQ(c.find(1)->deaths.total, 0U);
  finish(1, 3);
}

TEST_F(SpreadPrompt, AfterTwoOfThemOneWorkerComputesItAlone) {
  c.submit(1, 43, 3);
  for (int i = 0; i < 2; ++i) {
    c.turn();
    ASSERT_TRUE(c.source(1).spread);
    const WorkerIndex other = c.source(1).spread->lanes[1].worker;
    while (c.phase(1) == Phase::prefill) fail(other);
    for (const LinkId link : links) {
      while (!c.state.workers[c.state.worker_links.at(link)].compute.steps.empty()) c.answer(link);
    }
  }
  finish(1, 3);
  EXPECT_EQ(c.state.counters.spreads, 2U);
}

TEST_F(SpreadPrompt, BlocksAreNobodysBeforeAllStepsThatReadThemHaveEnded) {
  c.submit(1, 43, 3);
  c.turn();
  c.from_frontend(c.frontend, Cancel{{1, 1}});
  const auto free = [&](WorkerIndex i) { return c.state.workers[i].store.pool.free_blocks(); };
  for (WorkerIndex i = 0; i < 3; ++i) EXPECT_LT(free(i), 12U);
  while (!c.state.workers[0].compute.steps.empty()) c.answer(links[0]);
  while (!c.state.workers[1].compute.steps.empty()) c.answer(links[1]);
  EXPECT_LT(free(0), 12U) << "the third one's step may read them";
  c.answer(links[2]);
  for (WorkerIndex i = 0; i < 3; ++i) EXPECT_EQ(free(i), 12U);
  EXPECT_FALSE(is_read_by_others(c.state, 0));
}

TEST_F(SpreadPrompt, WhatFillsAStepWaitsForTheNext) {
  c.state.settings.token_budget = TokenBudget{5, 5, 5};
  c.submit(1, 43, 3);
  finish(1, 3);
  EXPECT_EQ(c.state.counters.spreads, 1U);
}

TEST_F(SpreadPrompt, ManyAtOnceGetAllTokens) {
  for (std::uint64_t i = 1; i <= 8; ++i) c.submit(i, static_cast<std::uint32_t>(6 * i), 12);
  c.run(6000);
  for (std::uint64_t i = 1; i <= 8; ++i) {
    ASSERT_NE(c.terminal(i), nullptr) << i;
    EXPECT_EQ(c.tokens_of(i), 12U) << i;
  }
}

TEST_F(SpreadPrompt, ADrainingWorkerLetsGoOfIt) {
  c.submit(1, 43, 3);
  c.turn();
  c.heartbeat(links[1], /*draining=*/true);
  c.wait(c.state.settings.drain + kSecond);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.run(4000);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

}  // namespace
}  // namespace baton::test
