// Where a request's time went: every nanosecond in one part, whatever happens to it.
#include <memory>
#include <numeric>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

TimeNs sum(const RequestTiming& timing) {
  return std::accumulate(timing.spent.begin(), timing.spent.end(), TimeNs{0});
}

TimeNs ms(const RequestTiming& timing, Part part) {
  return timing.spent.at(static_cast<std::size_t>(part)) / kMillisecond;
}

std::vector<std::string> kinds(const RequestTiming& timing) {
  std::vector<std::string> list;
  for (const Moment& moment : timing.moments) {
    list.push_back(std::string(to_string(static_cast<MomentKind>(moment.kind))) + " " +
                   timing.workers.at(moment.worker));
  }
  return list;
}

struct TimedPair : Cluster {
  explicit TimedPair(const Settings& settings = {}, std::uint32_t blocks = 100)
      : Cluster(settings),
        prefill(ready_worker("prefill0", Role::prefill, blocks)),
        decode(ready_worker("decode0", Role::decode)) {}
  void later(TimeNs milliseconds) { now += milliseconds * kMillisecond; }
  const RequestTiming& last(std::uint64_t counter) { return timings[counter].back(); }
  LinkId prefill;
  LinkId decode;
};

Settings two_chunks() {
  Settings settings;
  settings.prompt_chunk = 8;
  settings.steps_in_flight = 1;
  return settings;
}

TEST(RequestTimes, AWayThroughAPair) {
  TimedPair c(two_chunks());
  c.submit(1, 14, 3);
  const TimeNs start = c.now;
  c.later(5);
  c.turn();  // the first chunk
  c.later(20);
  c.answer(c.prefill);
  c.turn();
  c.later(30);
  c.answer(c.prefill);
  c.turn();
  ASSERT_EQ(c.timings[1].size(), 1U) << "with its first token";
  EXPECT_EQ(ms(c.last(1), Part::queue), 5);
  EXPECT_EQ(ms(c.last(1), Part::prefill), 50);
  EXPECT_TRUE(c.last(1).moments.empty()) << "numbers alone, so far";
  c.later(7);
  while (!c.pulls[c.decode].empty()) c.done_pull(c.decode);
  c.later(2);
  c.turn();
  c.later(11);
  c.answer(c.decode);
  ASSERT_EQ(c.timings[1].size(), 2U) << "with the first token of the other worker";
  c.turn();
  c.later(13);
  c.answer(c.decode);
  ASSERT_EQ(c.timings[1].size(), 3U) << "with its terminal";
  const RequestTiming& timing = c.last(1);
  EXPECT_TRUE(timing.ended);
  EXPECT_EQ(sum(timing), c.now - start);
  EXPECT_EQ(ms(timing, Part::handoff), 7);
  EXPECT_EQ(ms(timing, Part::decode_wait), 2);
  EXPECT_EQ(ms(timing, Part::decode), 24);
  EXPECT_EQ(timing.decode_steps, 2U);
  EXPECT_EQ(timing.computed_tokens, 14U);
  EXPECT_EQ(kinds(timing),
            (std::vector<std::string>{"chunk prefill0", "chunk prefill0", "pull decode0",
                                      "pull decode0", "decodes decode0"}));
}

TEST(RequestTimes, ALogOfPartsTellsTheSameTimesAndOnlyWhileItIsWanted) {
  TimedPair c(two_chunks());
  c.state.part_log = std::make_shared<PartLog>();
  PartLog& log = *c.state.part_log;
  c.submit(1, 14, 3);
  c.turn();
  EXPECT_TRUE(log.entries.empty()) << "nobody wants it";
  log.on = true;
  c.submit(2, 14, 3);
  const TimeNs start = c.now;
  for (int i = 0; i < 12 && c.timings[2].empty(); ++i) {
    c.later(3 + i);
    c.run(1);
  }
  c.later(4);
  c.gone(c.decode);  // one more way through the queue
  c.later(30);
  c.run();
  ASSERT_FALSE(c.timings[2].empty());
  const RequestTiming& timing = c.last(2);
  ASSERT_TRUE(timing.ended);
  PartTimes spent{};
  const PartLog::Entry* last = nullptr;
  for (const PartLog::Entry& entry : log.entries) {
    if (entry.request != RequestId{1, 2}) continue;
    if (last == nullptr) {
      EXPECT_EQ(entry.at, start);
      EXPECT_EQ(entry.part, Part::queue);
    } else {
      EXPECT_FALSE(last->ended);
      spent[static_cast<std::size_t>(last->part)] += entry.at - last->at;
    }
    last = &entry;
  }
  ASSERT_NE(last, nullptr);
  EXPECT_TRUE(last->ended);
  EXPECT_EQ(std::vector<TimeNs>(spent.begin(), spent.end()), timing.spent);
  EXPECT_GT(ms(timing, Part::prefill), 0);
}

std::vector<std::string> moves(const RequestTiming& timing) {
  std::vector<std::string> list;
  for (const Move& move : timing.moves) {
    list.push_back(std::string(to_string(static_cast<MoveCause>(move.cause))) + " " +
                   timing.workers.at(move.from) + " " + timing.workers.at(move.to));
  }
  return list;
}

TEST(RequestTimes, MovesSayFromWhereToWhereAndWhy) {
  TimedPair c(two_chunks());
  c.submit(1, 6, 9);
  c.run(4);
  c.later(3);
  c.gone(c.decode);
  c.later(40);
  c.decode = c.ready_worker("decode1", Role::decode, 100, 2);
  c.run();
  const RequestTiming& timing = c.last(1);
  EXPECT_EQ(moves(timing),
            (std::vector<std::string>{"handoff prefill0 decode0", "died decode0 prefill0",
                                      "handoff prefill0 decode1"}));
  EXPECT_EQ(timing.all_moves, 3U);
  EXPECT_EQ(timing.moves[0].away, 0);
  EXPECT_EQ(timing.moves[1].away, 40 * kMillisecond);
}

TEST(RequestTimes, WhatStaysHasNoMoves) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 6, 9);
  c.run();
  EXPECT_TRUE(c.timings[1].back().moves.empty());
}

TEST(RequestTimes, AWorkerThatIsToldToLeaveIsNoPreemption) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 6, 50);
  c.turn();
  c.answer(first);
  c.event(SetDraining{"mixed0", true});
  c.ready_worker("mixed1", Role::mixed);
  c.wait(c.state.settings.drain + kSecond);
  while (!c.worker("mixed0").compute.steps.empty()) c.answer(first);
  c.run();
  const RequestTiming& timing = c.timings[1].back();
  EXPECT_EQ(moves(timing), (std::vector<std::string>{"drained mixed0 mixed1"}));
  EXPECT_EQ(timing.preemptions, 0U);
}

TEST(RequestTimes, TheQueueSaysWhy) {
  TimedPair c(two_chunks(), /*blocks=*/5);
  c.submit(1, 16, 2);
  c.submit(2, 12, 2);
  c.turn();
  c.later(9);
  c.turn();
  c.run();
  const RequestTiming& timing = c.last(2);
  EXPECT_EQ(timing.ahead, 1U);
  EXPECT_EQ(timing.behind, (RequestId{1, 1}));
  ASSERT_FALSE(timing.reasons.empty());
  const auto blocks = std::find_if(timing.reasons.begin(), timing.reasons.end(), [](const auto& r) {
    return r.why == "no blocks are left" || r.why == "the step is full";
  });
  ASSERT_NE(blocks, timing.reasons.end()) << timing.reasons.front().why;
  EXPECT_EQ(ms(timing, Part::queue), 9);
}

TEST(RequestTimes, ADeathIsAMomentAndTheWaitForAnotherPlaceAPart) {
  TimedPair c(two_chunks());
  c.submit(1, 6, 5);
  const TimeNs start = c.now;
  c.run(4);
  c.later(3);
  c.gone(c.decode);
  c.later(40);
  c.decode = c.ready_worker("decode0", Role::decode, 100, 2);
  c.run();
  const RequestTiming& timing = c.last(1);
  EXPECT_TRUE(timing.ended);
  EXPECT_EQ(timing.deaths, 1U);
  EXPECT_EQ(sum(timing), c.now - start);
  EXPECT_EQ(ms(timing, Part::requeue), 40);
  const auto list = kinds(timing);
  EXPECT_NE(std::find(list.begin(), list.end(), "died decode0"), list.end());
}

TEST(RequestTimes, ALongGapSaysWhatRan) {
  Settings settings;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 30);
  for (int i = 0; i < 12; ++i) {
    c.turn();
    c.now += 2 * kMillisecond;
    c.answer(mixed);
  }
  c.submit(2, 20, 2);
  c.turn();  // a step with a prompt beside
  c.now += 50 * kMillisecond;
  c.answer(mixed);
  c.run();
  const RequestTiming& timing = c.timings[1].back();
  const auto gap = std::find_if(timing.moments.begin(), timing.moments.end(), [](const Moment& m) {
    return m.kind == static_cast<std::uint32_t>(MomentKind::gap);
  });
  ASSERT_NE(gap, timing.moments.end());
  EXPECT_EQ(gap->took, 50 * kMillisecond);
  EXPECT_EQ(gap->cause, static_cast<std::uint32_t>(GapCause::prompt));
  EXPECT_EQ(gap->other, (RequestId{1, 2}));
  EXPECT_EQ(gap->tokens, 20U);
}

TEST(RequestTimes, WhatIsKeptHasABound) {
  RequestTimes times;
  times.begin(0, false, 0, {});
  times.enter(Part::prefill, 1);
  TimeNs now = 1;
  for (int i = 0; i < 1000; ++i, now += kMillisecond) times.chunk(0, now, now + kMillisecond, 10);
  times.decodes_on(1, now, true);
  for (int i = 0; i < 5000; ++i) {
    now += i % 50 == 49 ? 90 * kMillisecond : kMillisecond;
    if (times.token(now)) times.gap(1, now, GapCause::step, 0, {});
  }
  for (int i = 0; i < 100; ++i) times.lost_place(MoveCause::died, 1, now);
  const char* const reasons[] = {"a", "b", "c", "d", "e", "f"};
  times.enter(Part::requeue, now);
  for (int i = 0; i < 60; ++i) times.waits_for(reasons[i % 6], ++now);
  times.end(now);
  const RequestTiming told = times.told(now, true);
  EXPECT_EQ(sum(told), now);
  EXPECT_EQ(told.computed_tokens, 10'000U);
  EXPECT_EQ(told.deaths, 100U);
  EXPECT_LE(told.moments.size(), 32U);
  EXPECT_EQ(told.all_moves, 1U);
  for (int i = 0; i < 100; ++i) times.chunk(static_cast<std::uint32_t>(i % 2), now, now, 1);
  EXPECT_EQ(times.told(now, true).moves.size(), 8U);
  EXPECT_EQ(times.told(now, true).moves.front().from, 0U);
  EXPECT_EQ(times.told(now, true).all_moves, 101U);
  EXPECT_LE(told.reasons.size(), 4U);
  EXPECT_NEAR(static_cast<double>(told.median_gap), 1e6, 1e5);
}

TEST(RequestTimes, AMedianIsRightToATenth) {
  for (const TimeNs gap : {20'000L, 300'000L, 1'700'000L, 25'000'000L, 900'000'000L}) {
    GapCounts counts;
    for (int i = 0; i < 70'000; ++i) counts.add(i % 3 == 0 ? 5 * gap : gap);
    EXPECT_NEAR(static_cast<double>(counts.median()), static_cast<double>(gap),
                0.13 * static_cast<double>(gap));
  }
  EXPECT_EQ(GapCounts().median(), 0);
}

}  // namespace
}  // namespace baton::test
