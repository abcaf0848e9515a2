// Faults that are too seldom in scenarios for a seed, found in clusters that are played by hand.
#include <gtest/gtest.h>

#include "ipc/fault_points.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::sim {
namespace {

struct WithFault {
  explicit WithFault(Fault which) { active_fault = which; }
  ~WithFault() { active_fault = Fault::none; }
};

LinkId join(test::Cluster& c, const char* name, std::uint32_t blocks) {
  const LinkId link = c.register_worker(name, Role::mixed);
  Hello hello = test::Cluster::hello_of(name, blocks);
  hello.reads_in_place = true;
  hello.progress_handle = name;
  c.from_worker(link, hello);
  return link;
}

/// Two requests were on a worker whose death is seen late; the second one has got on elsewhere
/// since. It may have killed the worker as well. Returns deaths of the first one, and how many of
/// them it was alone with.
std::pair<std::uint32_t, std::uint32_t> blamed_late(Fault which) {
  const WithFault planted(which);
  test::Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 300, 6);
  c.submit(2, 8, 6);
  c.turn();
  c.event(SendFailed{first});
  const LinkId second = c.ready_worker("mixed1", Role::mixed, /*blocks=*/10);  // for 2 alone
  for (int steps = 0; steps < 2; ++steps) {  // its prompt, and a token
    c.turn();
    c.answer(second);
  }
  EXPECT_GE(c.tokens_of(2), 2U);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.gone(first);
  EXPECT_EQ(c.deaths(2), 0U);
  return {c.deaths(1), c.find(1)->deaths.alone};
}

TEST(BlameFaults, WhoGotOnElsewhereWasThereToo) {
  EXPECT_EQ(blamed_late(Fault::none), std::pair(1U, 0U));
  EXPECT_EQ(blamed_late(Fault::got_on_ignored), std::pair(1U, 1U));
}

/// A worker dies in a step with a chunk of a prompt that has been given up since: who else was in
/// that step, nobody knows any more. Likewise.
std::pair<std::uint32_t, std::uint32_t> blamed_after_giving_up(Fault which) {
  const WithFault planted(which);
  Settings settings;
  settings.elastic = true;
  settings.elastic_prompt_tokens = 20;
  settings.prompt_chunk = 8;
  test::Cluster c(settings);
  const LinkId first = join(c, "w0", 30);
  const LinkId second = join(c, "w1", 30);
  c.submit(1, 43, 2);
  c.turn();
  const Worker& w1 = c.worker("w1");
  EXPECT_FALSE(w1.compute.steps.empty()) << "the prompt is spread";
  StepResult result = c.result_of(w1);
  for (const auto& [id, n] : w1.compute.steps.front().rows)
    result.failed.push_back({id, "nobody came", false, true});
  c.from_worker(second, result);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.gone(first);
  return {c.deaths(1), c.find(1)->deaths.alone};
}

TEST(BlameFaults, InAStepThatItsRequestHasLeftNobodyWasAlone) {
  EXPECT_EQ(blamed_after_giving_up(Fault::none), std::pair(1U, 0U));
  EXPECT_EQ(blamed_after_giving_up(Fault::given_up_alone), std::pair(1U, 1U));
}

/// A sequence that began in the pool of w0 goes on in that of w1, which has room for all of it.
struct Gathering {
  Gathering() : c(settings(), /*prefix_cache=*/true) {
    c.state.started = c.now;  // more workers may come: nothing is cut short
    first = join(c, "w0", 3);
    c.submit(1, 10, 200);
    step();
    home = join(c, "w1", 12);
    for (int i = 0; i < 20 && c.source(1).extents.size() < 2; ++i) step();
    c.turn();
  }
  static Settings settings() {
    Settings settings;
    settings.elastic = true;
    return settings;
  }
  void step() {
    c.turn();
    for (Worker& w : c.state.workers) {
      while (w.ready() && !w.compute.steps.empty()) c.answer(w.peer.link);
    }
  }

  test::Cluster c;
  LinkId first = kNoLink;
  LinkId home = kNoLink;
};

/// Columns of it that w1's index finds, which knows something else under the number that w0's had.
std::uint32_t found_after_gathering(Fault which) {
  const WithFault planted(which);
  Gathering g;
  if (g.c.pulls[g.home].empty()) return 0;
  g.c.done_pull(g.home);
  g.step();
  g.step();
  EXPECT_EQ(g.c.source(1).extents.size(), 1U);
  std::vector<Token> tokens = g.c.find(1)->prompt;
  tokens.insert(tokens.end(), g.c.find(1)->generated.begin(), g.c.find(1)->generated.end());
  const Store& store = g.c.state.store(1);
  return store.pool.match("", tokens, store.shape, 4).columns;
}

TEST(GatherFaults, WhatWasGatheredIsFoundAgain) {
  EXPECT_EQ(found_after_gathering(Fault::none), 4U);
  EXPECT_LT(found_after_gathering(Fault::stale_prefix_node), 4U);
}

/// Pulls that begin while w0 is away and its pool is kept.
std::size_t pulls_from_absent(Fault which) {
  const WithFault planted(which);
  Gathering g;
  g.c.state.store(0).offer.leased = true;
  g.c.gone(g.first);
  g.c.fail_pull(g.home);
  g.c.now += kSecond / 2;
  g.c.heartbeat(g.home);
  g.c.turn();
  return g.c.pulls[g.home].size();
}

TEST(GatherFaults, OutOfAKeptPoolWhoseWorkerIsAwayNothingIsPulled) {
  EXPECT_EQ(pulls_from_absent(Fault::none), 0U);
  EXPECT_EQ(pulls_from_absent(Fault::gathered_from_absent), 1U);
}

}  // namespace
}  // namespace baton::sim
