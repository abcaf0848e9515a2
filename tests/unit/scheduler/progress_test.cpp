// How far a prompt is, as front ends are told that asked.
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings short_chunks(std::uint32_t steps_in_flight) {
  Settings settings;
  settings.prompt_chunk = 8;
  settings.steps_in_flight = steps_in_flight;
  return settings;
}

struct Asking : Cluster {
  explicit Asking(std::uint32_t steps_in_flight = 1) : Cluster(short_chunks(steps_in_flight)) {}
  void ask(std::uint64_t counter, std::uint32_t prompt, std::uint32_t max_tokens = 4) {
    Submit submit = request(counter, prompt, max_tokens);
    submit.progress = true;
    from_frontend(frontend, submit);
  }
  void chunk(LinkId link, TimeNs took) {
    turn();
    now += took;
    answer(link);
  }
  std::vector<std::uint32_t> done(std::uint64_t counter) {
    std::vector<std::uint32_t> list;
    for (const Progress& one : progress[counter]) list.push_back(one.done);
    return list;
  }
};

TEST(Progress, EachChunkIsToldToWhoAsked) {
  Asking c;
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, 20);
  for (int i = 0; i < 3; ++i) c.chunk(mixed, kProgressInterval);
  EXPECT_EQ(c.done(1), (std::vector<std::uint32_t>{8, 16, 20}));
  EXPECT_EQ(c.progress[1].back().took, 3 * kProgressInterval);
  c.run();
  EXPECT_EQ(c.progress[1].size(), 3U) << "tokens are no progress of the prompt";
  c.submit(2, 20);
  c.run();
  EXPECT_TRUE(c.progress[2].empty()) << "it has not asked";
}

TEST(Progress, NotTooOftenButTheLastOneAlways) {
  Asking c;
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, 80);
  for (int i = 0; i < 10; ++i) c.chunk(mixed, kProgressInterval / 4);
  EXPECT_EQ(c.done(1), (std::vector<std::uint32_t>{8, 40, 72, 80}));
}

TEST(Progress, AlsoTheLastChunkWithAStepBehindIt) {
  Asking c(2);
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, 20);
  c.turn();
  while (c.tokens_of(1) == 0) {
    c.now += kProgressInterval;
    c.answer(mixed);
    c.turn();
  }
  EXPECT_EQ(c.done(1), (std::vector<std::uint32_t>{8, 16, 20}));
}

TEST(Progress, AfterADeathItBeginsAnew) {
  Asking c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, 20);
  c.chunk(first, kProgressInterval);
  c.chunk(first, kProgressInterval);
  c.gone(first);
  const LinkId second = c.ready_worker("mixed1", Role::mixed);
  for (int i = 0; i < 3; ++i) c.chunk(second, kProgressInterval);
  EXPECT_EQ(c.done(1), (std::vector<std::uint32_t>{8, 16, 8, 16, 20}));
  // With tokens what is computed again is none of the client's business.
  c.turn();
  c.answer(second);
  c.gone(second);
  c.ready_worker("mixed2", Role::mixed);
  c.run();
  EXPECT_EQ(c.progress[1].size(), 5U);
  EXPECT_EQ(c.tokens_of(1), 4U);
}

TEST(Progress, WhatWasCachedIsTold) {
  Asking c;
  c.state.settings.prefix_cache = true;
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 20);
  c.run();
  c.ask(2, 20);
  c.run();
  ASSERT_FALSE(c.progress[2].empty());
  EXPECT_EQ(c.progress[2].back().done, 20U);
  EXPECT_EQ(c.progress[2].back().cached, 16U);
}

}  // namespace
}  // namespace baton::test
