// The host part of a pool: what is copied there, when, and how it comes back.
#include <algorithm>
#include <set>
#include <span>

#include "scheduler/apply/requests.h"
#include "scheduler/plan/swap.h"
#include "scheduler/prefix/prefix_cache.h"
#include "tests/unit/scheduler/cached_cluster.h"

namespace baton::test {
namespace {

Settings swapping(Swap swap = Swap::always, std::uint32_t ahead = 0) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.swap = swap;
  settings.swap_step_blocks = ahead;
  return settings;
}

/// One worker with a small pool and a host part. Blocks of 4 tokens.
struct Swapped : Cached {
  explicit Swapped(std::uint32_t blocks, std::uint32_t host_blocks,
                   const Settings& settings = swapping())
      : Cached(settings),
        total(blocks),
        w(ready_worker("mixed0", Role::mixed, blocks, 1, host_blocks)) {}

  struct Copies {
    std::vector<CopyOp> out, in;
  };
  Copies copies(const StepPlan& plan) const {
    Copies found;
    for (const CopyOp& op : plan.ops) (op.to >= total ? found.out : found.in).push_back(op);
    return found;
  }
  Copies all_copies() const {
    Copies all;
    for (const StepPlan& plan : sent<StepPlan>(w)) {
      const Copies some = copies(plan);
      all.out.insert(all.out.end(), some.out.begin(), some.out.end());
      all.in.insert(all.in.end(), some.in.begin(), some.in.end());
    }
    return all;
  }
  /// The whole pool is cached: `n` blocks of one finished prompt after another.
  void fill(std::uint64_t counter, std::size_t length, Token first) {
    ask(counter, words(length, first), 1);
    run();
  }
  /// Until request 2 has been preempted and its steps have ended.
  void run_to_preemption() {
    turn();
    while (state.counters.preemptions == 0 || phase(2) != Phase::waiting) {
      answer(w);
      turn();
    }
  }

  std::uint32_t total;
  LinkId w;
};

TEST(Swap, APreemptedRequestsBlocksComeBackAndOnlyTheRestIsComputed) {
  Swapped c(6, 12);
  c.ask(1, words(8, 10), 12);
  c.ask(2, words(8, 40), 12);
  c.run_to_preemption();
  const std::size_t length = c.find(2)->length();
  c.run();
  ASSERT_EQ(c.tokens_of(1), 12U);
  ASSERT_EQ(c.tokens_of(2), 12U);
  const AddSequence again = c.added(c.w, 2);
  EXPECT_EQ(again.computed, (length - 1) / 4 * 4) << "all but the partly filled block";
  const Swapped::Copies all = c.all_copies();
  EXPECT_GT(all.in.size(), 0U);
  EXPECT_EQ(c.state.counters.blocks_out, all.out.size());
  EXPECT_EQ(c.state.counters.blocks_in, all.in.size());
  for (const CopyOp& in : all.in) {
    EXPECT_EQ(std::count_if(all.out.begin(), all.out.end(),
                            [&](const CopyOp& op) { return op.to == in.from; }),
              1);
  }
}

TEST(Swap, TheyAreCopiedOutByThePlanThatGivesThemAwayAndInByTheOneThatAdds) {
  Swapped c(6, 12);
  c.ask(1, words(8, 10), 12);
  c.ask(2, words(8, 40), 12);
  c.run();
  std::set<BlockId> saved;
  for (const StepPlan& plan : c.sent<StepPlan>(c.w)) {
    const Swapped::Copies some = c.copies(plan);
    for (const CopyOp& op : some.out) {
      const bool grown = std::count(plan.grow_blocks.begin(), plan.grow_blocks.end(), op.from) != 0;
      const bool added = std::any_of(plan.add.begin(), plan.add.end(), [&](const AddSequence& add) {
        return std::count(add.blocks.begin(), add.blocks.end(), op.from) != 0;
      });
      EXPECT_TRUE(grown || added);
      EXPECT_TRUE(saved.insert(op.to).second);
    }
    for (const CopyOp& op : some.in) {
      ASSERT_EQ(plan.add.size(), 1U);
      const std::vector<BlockId>& blocks = plan.add[0].blocks;
      const auto at = std::find(blocks.begin(), blocks.end(), op.to) - blocks.begin();
      EXPECT_LT(at, plan.add[0].computed / 4);
    }
  }
  EXPECT_FALSE(saved.empty());
}

TEST(Swap, ACopysBlocksAreHeldUntilItsStepHasEnded) {
  Swapped c(4, 8);
  c.fill(1, 12, 10);  // three blocks cached, one free
  c.ask(2, words(8, 50), 8);
  c.turn();
  const Swapped::Copies now = c.copies(c.last_plan(c.w));
  ASSERT_EQ(now.out.size(), 2U);
  EXPECT_EQ(c.pool("mixed0", true).fenced, 2U);
  c.from_frontend(c.frontend, Cancel{{1, 2}});
  EXPECT_EQ(c.pool("mixed0").fenced, 3U) << "its blocks are read by the copies, too";
  c.answer(c.w);
  EXPECT_EQ(c.pool("mixed0").fenced, 0U);
  EXPECT_EQ(c.pool("mixed0", true).fenced, 0U);
  EXPECT_EQ(c.pool("mixed0", true).cached, 2U);
}

TEST(Swap, ASharedBlockIsCopiedOnceEachWay) {
  Swapped c(6, 12);
  c.fill(1, 12, 10);
  c.fill(2, 20, 50);  // takes all that 1 left
  const std::size_t out = c.all_copies().out.size();
  EXPECT_EQ(out, 3U);
  c.ask(3, words(13, 10), 2);
  c.ask(4, words(14, 10), 2);
  c.run();
  const Swapped::Copies all = c.all_copies();
  EXPECT_EQ(all.in.size(), 3U) << "the second one names the first one's blocks";
  EXPECT_EQ(c.added(c.w, 2).computed, 12U);
  EXPECT_EQ(c.added(c.w, 3).computed, 12U);
  std::set<BlockId> from;
  for (const CopyOp& op : all.in) EXPECT_TRUE(from.insert(op.from).second);
  c.fill(5, 20, 50);
  EXPECT_EQ(c.all_copies().in.size(), 3U + 3U)
      << "its first block is in the pool, the last token is computed";
  std::multiset<std::pair<BlockId, BlockId>> pairs;
  for (const CopyOp& op : c.all_copies().out) pairs.insert({op.from, op.to});
  EXPECT_EQ(pairs.size(), 3U + 4U) << "what the host part knows is not copied again";
}

TEST(Swap, WhoWasPreemptedComesBackBeforeWhoWaits) {
  Swapped c(6, 12);
  c.ask(1, words(8, 10), 12);
  c.ask(2, words(8, 40), 12);
  Submit old = c.request(3, 0, 4);
  c.run_to_preemption();
  old.prompt = words(8, 70);
  old.arrival -= 100 * kSecond;
  c.from_frontend(c.frontend, old);
  while (c.phase(2) == Phase::waiting) {
    ASSERT_EQ(c.phase(3), Phase::waiting);
    c.answer(c.w);
    c.turn();
  }
  c.run();
  EXPECT_EQ(c.tokens_of(2), 12U);
  EXPECT_EQ(c.tokens_of(3), 4U);
}

TEST(Swap, AFullHostPartForgetsTheLongestUnused) {
  Swapped c(4, 2);
  c.fill(1, 12, 10);
  c.fill(2, 12, 50);
  c.fill(3, 12, 90);
  EXPECT_EQ(c.pool("mixed0", true).cached, 2U);
  const std::size_t in = c.all_copies().in.size();
  c.ask(4, words(13, 10), 2);  // nothing of it is left
  c.run();
  EXPECT_EQ(c.all_copies().in.size(), in);
  EXPECT_EQ(c.added(c.w, 3).computed, 0U);
  EXPECT_EQ(c.tokens_of(4), 2U);
}

TEST(Swap, AHostPartOfOneBlockNeverFailsAnybody) {
  Swapped c(6, 1);
  for (std::uint64_t i = 1; i <= 6; ++i) c.ask(i, words(8, static_cast<Token>(30 * i)), 12);
  c.run();
  for (std::uint64_t i = 1; i <= 6; ++i) EXPECT_EQ(c.tokens_of(i), 12U);
  EXPECT_GT(c.state.counters.preemptions, 0U);
}

TEST(Swap, OfAChainInTheHostPartTheEndIsForgottenFirst) {
  Swapped c(4, 4);
  c.fill(1, 12, 10);  // three blocks
  c.fill(2, 15, 50);  // takes all: they are saved by one plan
  c.fill(3, 7, 100);  // one more
  c.fill(4, 7, 150);  // one more, for which the host part must forget
  ASSERT_EQ(c.all_copies().out.size(), 5U);
  c.ask(5, words(13, 10), 2);
  c.run();
  EXPECT_EQ(c.added(c.w, 4).computed, 8U);
}

TEST(Swap, WhatANewOwnerWroteIsNotOldBecauseItsBlockWasSaved) {
  Swapped c(6, 12);
  c.fill(1, 12, 10);  // three blocks, three free
  c.fill(2, 16,
         50);  // five: the last two of the first are saved, and written over in the same step
  c.fill(3, 7, 100);  // two, one of them free: the first one's beginning goes
  c.ask(4, words(17, 50), 2);
  c.run();
  EXPECT_EQ(c.added(c.w, 3).computed, 16U);
  EXPECT_EQ(c.state.counters.blocks_in, 0U) << "all of it is still in the pool";
}

TEST(Swap, ASmallHostPartIsNotFilledAgainAndAgainAhead) {
  Swapped c(64, 2, swapping(Swap::always, 8));
  c.fill(1, 250, 100);  // the whole pool
  const std::uint64_t before = c.state.counters.blocks_out;
  c.ask(2, words(3, 10), 17);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 17U);
  EXPECT_LE(c.state.counters.blocks_out - before, 6U) << "five blocks were taken";
}

TEST(Swap, NeverMeansNever) {
  Swapped c(6, 12, swapping(Swap::never, 8));
  for (std::uint64_t i = 1; i <= 4; ++i) c.ask(i, words(8, static_cast<Token>(30 * i)), 12);
  c.run();
  EXPECT_GT(c.state.counters.preemptions, 0U);
  EXPECT_TRUE(c.all_copies().out.empty());
  EXPECT_EQ(c.pool("mixed0", true).free, 12U);
}

/// A step of so many microseconds for a prompt of 8 tokens.
bool keeps_after(std::uint32_t step_us, float block_us) {
  Swapped c(20, 20, swapping(Swap::automatic));
  c.worker("mixed0").store.offer.host_block_us = block_us;
  c.ask(1, words(8), 1);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  result.duration_us = step_us;
  c.from_worker(c.w, result);
  return swaps(c.state, c.worker("mixed0"));
}

TEST(Swap, TheCheaperOneIsChosenByWhatWasMeasured) {
  // Four tokens are computed again in 400 us; out and in take twice the copy.
  EXPECT_TRUE(keeps_after(800, 199));
  EXPECT_FALSE(keeps_after(800, 201));
  EXPECT_FALSE(keeps_after(80, 100));
}

TEST(Swap, WhatAStepDecodesBesideAPromptIsNotThePromptsCost) {
  StepCosts costs;
  for (int i = 0; i < 10; ++i) costs.take(300, 0, true);
  costs.take(500, 10, true);
  EXPECT_DOUBLE_EQ(costs.token_us(), 20);
  StepCosts alone;
  alone.take(500, 10, false);
  EXPECT_DOUBLE_EQ(alone.token_us(), 50);
}

TEST(Swap, AWorkerThatComputesNoPromptsAsksThoseThatDo) {
  Cached c(swapping(Swap::automatic));
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode, 100, 1, 10);
  Worker& decode = c.worker("decode0");
  decode.store.offer.host_block_us = 100;
  EXPECT_TRUE(swaps(c.state, decode)) << "nothing was measured";
  c.worker("prefill0").compute.costs.take(490, 10, false);
  EXPECT_FALSE(swaps(c.state, decode)) << "49 us a token, four of them";
  c.worker("prefill0").compute.costs.take(10'000, 10, false);
  EXPECT_TRUE(swaps(c.state, decode));
}

TEST(Swap, TheOldestAreCopiedAheadAFewAStep) {
  Swapped c(16, 32, swapping(Swap::always, 1));
  c.fill(1, 24, 10);            // 6 blocks
  c.ask(2, words(36, 100), 1);  // all the others
  c.turn();
  const Swapped::Copies now = c.copies(c.last_plan(c.w));
  ASSERT_EQ(now.out.size(), 1U) << "a sixteenth of the pool";
  EXPECT_EQ(c.pool("mixed0").fenced, 1U) << "given to nobody before its copy has ended";
  c.answer(c.w);
  c.run();
  EXPECT_EQ(c.pool("mixed0").fenced, 0U);
  c.ask(3, words(3, 200), 1);
  c.run();
  EXPECT_EQ(c.all_copies().out.size(), 1U);
  c.ask(4, words(7, 300), 1);  // takes the free block, and the one that was copied
  c.turn();
  for (const CopyOp& op : c.copies(c.last_plan(c.w)).out) EXPECT_NE(op.from, now.out[0].from);
  EXPECT_TRUE(std::count(c.source(4).tail().blocks.begin(), c.source(4).tail().blocks.end(),
                         now.out[0].from) == 1)
      << "it has stayed the oldest";
  c.run();
}

// ---------------------------------------------------------------- other workers

/// mixed0 has written a prompt of three blocks, which lie in its host part alone.
struct TwoWorkers : Cached {
  explicit TwoWorkers(const Settings& settings = pulling())
      : Cached(settings),
        holder(ready_worker("mixed0", Role::mixed, 4, 1, 8)),
        other(ready_worker("mixed1", Role::mixed)) {
    event(SetDraining{"mixed1", true});
    ask(1, words(12, 10), 1);
    run();
    ask(2, words(12, 50), 1);
    run();
    ask(9, words(8, 90), 4);  // runs, and takes the room
    turn();
    event(SetDraining{"mixed1", false});
  }
  static Settings pulling() {
    Settings settings = swapping();
    settings.prefix_pull_tokens = 4;
    return settings;
  }
  LinkId holder;
  LinkId other;
};

TEST(Swap, AnotherWorkerPullsOutOfTheHostPart) {
  TwoWorkers c;
  c.worker("mixed0").store.offer.host_handle = "a segment";
  c.ask(3, words(13, 10), 3);
  c.turn();
  ASSERT_EQ(c.pulls[c.other].size(), 1U);
  const Pull pull = c.pulls[c.other].front();
  EXPECT_EQ(pull.exporter_host_handle, "a segment");
  EXPECT_EQ(pull.exporter_host_blocks, 8U);
  ASSERT_EQ(pull.from.size(), 3U);
  for (const BlockId block : pull.from) EXPECT_GE(block, 4U);
  for (const BlockId block : pull.to) EXPECT_LT(block, 100U);
  c.answer(c.holder);
  EXPECT_EQ(c.pool("mixed0", true).fenced, 3U) << "what is read is given to nobody";
  // A new term forgets all but what is still read.
  Hello again = Cluster::hello_of("mixed0", 4, 1, 8);
  again.hello_id = 2;
  c.from_worker(c.holder, again);
  EXPECT_EQ(c.pool("mixed0", true).fenced, 3U);
  EXPECT_EQ(c.pool("mixed0", true).cached, 0U);
  c.run();
  EXPECT_EQ(c.tokens_of(3), 3U);
  EXPECT_EQ(c.pool("mixed0", true).free, 8U);
}

/// A pair whose decode pool has room for two short answers or one long one: request 2 gives way.
struct SmallDecoder : Cached {
  explicit SmallDecoder(Swap swap = Swap::always, std::uint32_t host_blocks = 16)
      : Cached(swapping(swap)),
        prefill(ready_worker("prefill0", Role::prefill)),
        decode(ready_worker("decode0", Role::decode, 6, 1, host_blocks)) {
    ask(1, words(8, 10), 14);
    ask(2, words(8, 40), 14);
    for (int i = 0; i < 200 && state.counters.preemptions == 0; ++i) run(1);
    EXPECT_EQ(state.counters.preemptions, 1U);
    EXPECT_EQ(find(2)->kept.worker, swap == Swap::never ? kNobody : 1U);
  }
  LinkId prefill;
  LinkId decode;
};

TEST(Swap, APreemptedSequenceGoesBackToTheDecodeWorkerThatKeepsItsBlocks) {
  SmallDecoder c;
  c.ask(3, words(8, 70), 4);  // new: it waits for room behind the one that comes back
  for (int i = 0; i < 200 && c.phase(2) != Phase::decode; ++i) {
    c.run(1);
    EXPECT_NE(c.phase(3), Phase::decode);
  }
  const AddSequence back = c.added(c.decode, 2);
  EXPECT_EQ(back.prompt, words(8, 40));
  EXPECT_GT(back.generated.size(), 0U);
  EXPECT_GE(back.computed, 8U);
  c.run();
  EXPECT_GT(c.state.counters.blocks_in, 0U);
  EXPECT_EQ(c.state.counters.handoffs, 3U);
  EXPECT_EQ(c.state.counters.local_prefills, 1U);
  for (const std::uint64_t i : {1U, 2U}) EXPECT_EQ(c.tokens_of(i), 14U);
  EXPECT_EQ(c.tokens_of(3), 4U);
}

TEST(Swap, ItGoesBackThereThoughAnotherKnowsMoreOfIt) {
  SmallDecoder c;
  c.ready_worker("mixed0", Role::mixed);
  const Request& request = *c.find(2);
  Worker& decode = c.worker("decode0");
  decode.store.pool.forget(
      cached_prefix(c.state, request, decode, request.length() - 1, Reach::soon).blocks.back());
  std::vector<Token> tokens = request.prompt;
  tokens.insert(tokens.end(), request.generated.begin(), request.generated.end());
  BlockPool& pool = c.worker("mixed0").store.pool;
  PrefixIndex::Node node = PrefixIndex::kRoot;
  for (std::size_t at = 0; at + 4 <= tokens.size(); at += 4) {
    std::vector<BlockId> block;
    pool.allocate(1, block);
    node = pool.remember(node, "", std::span<const Token>(tokens).subspan(at, 4), block.front());
    pool.release(block.front(), 0, 0);
  }
  c.run();
  EXPECT_EQ(c.tokens_of(2), 14U);
  EXPECT_EQ(c.added(c.decode, 2).prompt, words(8, 40));
}

TEST(Swap, ThoseWhoWaitForAFullDecodeWorkerDoNotHideTheOthers) {
  Cached c(swapping());
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode, 200, 1, 200);
  const LinkId idle = c.ready_worker("decode1", Role::decode);
  c.event(SetDraining{"decode1", true});
  for (std::uint64_t i = 1; i <= 18; ++i) c.ask(i, words(8, static_cast<Token>(20 * i)), 50);
  for (int i = 0; i < 100 && c.worker("decode0").compute.decode_set.size() < 18; ++i) c.run(1);
  c.event(SetDraining{"decode1", false});
  for (std::uint64_t i = 2; i <= 18; ++i) preempt(c.state, *c.find(i));
  c.state.settings.max_running = 1;  // decode0 has no room for them
  c.ask(19, words(8, 900), 4);
  c.run(1);
  EXPECT_EQ(c.phase(18), Phase::waiting);
  ASSERT_NE(c.phase(19), Phase::waiting);
  EXPECT_EQ(c.added(prefill, 18).prompt, words(8, 900));
  for (int i = 0; i < 10 && c.tokens_of(19) < 4; ++i) c.run(1);
  EXPECT_EQ(c.added(idle, 0).prompt, words(8, 900));
  c.state.settings.max_running = 256;
  c.run();
  for (std::uint64_t i = 1; i <= 18; ++i) EXPECT_EQ(c.tokens_of(i), 50U);
}

TEST(Swap, APoolOfAnotherSizeUnderAPull) {
  TwoWorkers c;
  c.ask(3, words(13, 10), 3);
  c.turn();
  ASSERT_EQ(c.pulls[c.other].size(), 1U);
  Hello again = Cluster::hello_of("mixed0", 4, 1, 2);
  again.hello_id = 2;
  c.from_worker(c.holder, again);
  EXPECT_EQ(c.pool("mixed0", true).free, 2U);
  c.run();
  EXPECT_EQ(c.tokens_of(3), 3U);
}

TEST(Swap, WithoutItsBlocksItIsPrefilledAndHandedOverAgain) {
  SmallDecoder never(Swap::never);
  never.run();
  EXPECT_EQ(never.state.counters.handoffs, 3U);
  EXPECT_EQ(never.state.counters.local_prefills, 0U);
  EXPECT_EQ(never.tokens_of(2), 14U);
  SmallDecoder c;
  Hello again = Cluster::hello_of("decode0", 6, 1, 16);
  again.hello_id = 2;
  c.from_worker(c.decode, again);
  c.run();
  EXPECT_EQ(c.state.counters.local_prefills, 0U);
  for (const std::uint64_t i : {1U, 2U}) EXPECT_EQ(c.tokens_of(i), 14U);
}

TEST(Swap, ADecodeWorkerThatDrainsIsNotWaitedFor) {
  SmallDecoder c;
  const LinkId other = c.ready_worker("decode1", Role::decode);
  c.event(SetDraining{"decode0", true});
  c.run();
  EXPECT_EQ(c.added(other, 0).prompt, words(8, 40));
  EXPECT_EQ(c.tokens_of(2), 14U);
}

TEST(Swap, WhatAPullWritesIsForgottenNotCopied) {
  Settings settings = swapping();
  Cached c(settings);
  c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode, 8, 1, 16);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    c.ask(i, words(12, static_cast<Token>(100 * i)), 3);
    c.run();
    EXPECT_EQ(c.tokens_of(i), 3U);
  }
  EXPECT_EQ(c.state.counters.handoffs, 4U);
  for (const StepPlan& plan : c.sent<StepPlan>(decode)) EXPECT_TRUE(plan.ops.empty());
}

TEST(Swap, CopiedAheadItOutlivesAPull) {
  Cached c(swapping(Swap::always, 8));
  c.ready_worker("prefill0", Role::prefill, 100);
  c.ready_worker("decode0", Role::decode, 16, 1, 32);
  for (std::uint64_t i = 1; i <= 6; ++i) {
    c.ask(i, words(12, static_cast<Token>(100 * i)), 6);
    c.run();
    EXPECT_EQ(c.tokens_of(i), 6U);
  }
  EXPECT_GT(c.pool("decode0", true).cached, 0U);
}

TEST(Swap, ABeginningInBothPartsIsTakenFromBoth) {
  Swapped c(8, 16);
  c.fill(1, 24, 10);   // 6 blocks, the end of them is the oldest
  c.fill(2, 12, 100);  // 4 with its own last one: takes the end of the first
  const std::size_t out = c.all_copies().out.size();
  ASSERT_GT(out, 0U);
  ASSERT_LT(out, 6U);
  c.ask(3, words(25, 10), 2);
  c.turn();
  EXPECT_EQ(c.added(c.w, 2).computed, 24U);
  EXPECT_EQ(c.copies(c.last_plan(c.w)).in.size(), out);
  c.run();
  EXPECT_EQ(c.tokens_of(3), 2U);
}

TEST(Swap, DeathInTheMiddleOfACopy) {
  Swapped c(4, 8);
  c.fill(1, 12, 10);
  c.ask(2, words(8, 50), 8);
  c.turn();
  ASSERT_FALSE(c.copies(c.last_plan(c.w)).out.empty());
  Hello again = Cluster::hello_of("mixed0", 4, 1, 8);
  again.hello_id = 2;
  c.from_worker(c.w, again);
  EXPECT_EQ(c.pool("mixed0").free, 4U);
  EXPECT_EQ(c.pool("mixed0", true).free, 8U);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 8U);
  c.gone(c.w);
  EXPECT_EQ(c.pool("mixed0", true).total, 0U);
}

}  // namespace
}  // namespace baton::test
