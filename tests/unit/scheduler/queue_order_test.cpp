// Who is next: by arrival or length, after a preemption, and when the queue may move at all.
#include "scheduler/plan/queue_order.h"
#include "scheduler/apply/requests.h"

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings one_at_a_time() {
  Settings settings;
  settings.max_running = 1;
  settings.steps_in_flight = 1;
  return settings;
}

// ---------------------------------------------------------------- shortest first

TEST(ShortestFirst, ShortPromptsGoFirstAmongThoseThatCameTogether) {
  struct Case {
    std::uint32_t first, second;  // tokens of prompt; the second request comes `after` the first
    TimeNs after;
    std::uint64_t goes_first;
  };
  const Case table[] = {
      {40, 4, 0, 2},
      {4, 40, 0, 1},
      {8, 8, 0, 1},
      {40, 4, 359 * kMillisecond, 2},
      {40, 4, 361 * kMillisecond, 1},  // 36 tokens at 10 ms are made up for
  };
  for (const Case& line : table) {
    Settings settings = one_at_a_time();
    settings.queue_order = QueueOrder::shortest;
    settings.input_age = 10 * kMillisecond;
    Cluster c(settings);
    c.ready_worker("mixed0", Role::mixed);
    Submit first = c.request(1, line.first, 1);
    Submit second = c.request(2, line.second, 1);
    second.arrival = first.arrival + line.after;
    c.from_frontend(c.frontend, first);
    c.from_frontend(c.frontend, second);
    c.turn();
    EXPECT_EQ(c.phase(line.goes_first), Phase::prefill)
        << line.first << " and " << line.second << " tokens, " << line.after / kMillisecond
        << " ms";
    EXPECT_EQ(c.phase(3 - line.goes_first), Phase::waiting);
  }
}

TEST(ShortestFirst, ALongPromptIsNotStarvedByShortOnes) {
  Settings settings = one_at_a_time();
  settings.queue_order = QueueOrder::shortest;
  settings.input_age = kMillisecond;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 100, 1);
  const TimeNs begin = c.now;
  for (std::uint64_t next = 2; c.phase(1) == Phase::waiting && next < 500; ++next) {
    Submit brief = c.request(next, 4, 1);
    brief.arrival = c.now;
    c.from_frontend(c.frontend, brief);
    c.turn();
    if (c.phase(1) == Phase::waiting) c.answer(w);
    c.now += 2 * kMillisecond;
  }
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_GE(c.now - begin, 90 * kMillisecond);  // (100 - 4) tokens at 1 ms
  EXPECT_LE(c.now - begin, 110 * kMillisecond);
}

TEST(ShortestFirst, ArrivalOrderDoesNotLookAtLengths) {
  Settings settings;
  Submit submit;
  submit.arrival = 5 * kSecond;
  submit.prompt.assign(1000, 1);
  EXPECT_EQ(queue_place(submit, settings), 5 * kSecond);
  settings.queue_order = QueueOrder::shortest;
  EXPECT_EQ(queue_place(submit, settings), 5 * kSecond + 1000 * settings.input_age);
}

// ---------------------------------------------------------------- after a preemption

/// 2 and 3 run; 3 is evicted, then 2. An older one, 1, waits all the time. Who resumes in which
/// order?
std::vector<std::uint64_t> order_after_evictions(Preempted preempted) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.preempted = preempted;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(2, 8, 50);
  c.submit(3, 8, 50);
  c.turn();
  c.answer(w);
  c.state.settings.max_running = 1;
  Submit old = c.request(1, 8, 50);
  old.arrival -= kSecond;
  c.from_frontend(c.frontend, old);
  preempt(c.state, *c.find(3));
  preempt(c.state, *c.find(2));
  std::vector<std::uint64_t> order;
  while (order.size() < 3) {
    c.turn();
    for (const std::uint64_t i : {1U, 2U, 3U}) {
      if (c.find(i) == nullptr || c.phase(i) != Phase::prefill) continue;
      order.push_back(i);
      c.answer(w);
      c.from_frontend(c.frontend, Cancel{{1, i}});
      c.from_frontend(c.frontend, Ack{{1, i}});
    }
  }
  return order;
}

TEST(AfterPreemption, InPlaceTheOldestArrivalGoesFirst) {
  EXPECT_EQ(order_after_evictions(Preempted::in_place), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(order_after_evictions(Preempted::automatic), (std::vector<std::uint64_t>{1, 2, 3}))
      << "nothing is kept without a host part";
}

TEST(AfterPreemption, FirstMeansBeforeWhoeverWaitsAndInTheOrderOfEviction) {
  EXPECT_EQ(order_after_evictions(Preempted::first), (std::vector<std::uint64_t>{3, 2, 1}));
}

TEST(AfterPreemption, AtTheFrontTheLastEvictedGoesFirst) {
  EXPECT_EQ(order_after_evictions(Preempted::front), (std::vector<std::uint64_t>{2, 3, 1}));
}

// ---------------------------------------------------------------- delay factor

TEST(DelayFactor, BothSidesOfTheLimitAnEmptyQueueAndAnIdleEngine) {
  struct Case {
    double factor;
    std::optional<TimeNs> waited;
    TimeNs latency;
    bool idle, passes;
  };
  const TimeNs ms = kMillisecond;
  const Case table[] = {
      {0.5, 51 * ms, 100 * ms, false, true},
      {0.5, 50 * ms, 100 * ms, false, false},
      {0.5, 49 * ms, 100 * ms, false, false},
      {0.5, 1 * ms, 100 * ms, true, true},  // nothing runs
      {0.5, std::nullopt, 100 * ms, false, false},
      {0.5, std::nullopt, 100 * ms, true, false},
      {0, 0, 100 * ms, false, true},
      {0, std::nullopt, 0, false, false},
      {2, 1, 0, false, true},  // no step with prompts so far
  };
  for (const Case& line : table) {
    EXPECT_EQ(delay_passed(line.factor, line.waited, line.latency, line.idle), line.passes)
        << line.factor << " after " << line.waited.value_or(-1);
  }
}

struct Delayed : Cluster {
  Delayed() : Cluster(with()), w(ready_worker("mixed0", Role::mixed)) {}
  static Settings with() {
    Settings settings;
    settings.steps_in_flight = 1;
    settings.delay_factor = 0.5;
    return settings;
  }
  LinkId w;
};

TEST(DelayFactor, APromptWaitsForHalfOfWhatTheLastOneTook) {
  Delayed c;
  EXPECT_FALSE(oldest_wait(c.state, c.now).has_value());
  c.turn();  // an empty queue is no error
  c.submit(1, 8, 50);
  c.turn();  // idle: at once
  EXPECT_EQ(c.phase(1), Phase::prefill);
  c.now += 100 * kMillisecond;
  c.answer(c.w);
  EXPECT_EQ(c.worker("mixed0").compute.prompt_latency, 100 * kMillisecond);
  c.submit(2, 8, 50);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.now += 40 * kMillisecond;
  c.answer(c.w);  // a step without prompts changes nothing
  EXPECT_EQ(c.worker("mixed0").compute.prompt_latency, 100 * kMillisecond);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.now += 11 * kMillisecond;
  c.answer(c.w);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::prefill);
}

TEST(DelayFactor, PromptsThatGatherGoTogether) {
  Delayed c;
  c.submit(1, 8, 50);
  c.turn();
  c.now += 100 * kMillisecond;
  c.answer(c.w);
  for (std::uint64_t i = 2; i <= 4; ++i) {
    c.submit(i, 8, 50);
    c.turn();
    c.now += 20 * kMillisecond;
    c.answer(c.w);
  }
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.turn();
  EXPECT_EQ(c.last_plan(c.w).add.size(), 3U);
}

TEST(DelayFactor, WhenNothingRunsAnyMoreNobodyWaits) {
  Delayed c;
  c.submit(1, 8, 1);
  c.turn();
  c.now += kSecond;
  c.answer(c.w);  // its only token
  c.submit(2, 8, 1);
  c.turn();
  EXPECT_EQ(c.phase(2), Phase::prefill);
}

}  // namespace
}  // namespace baton::test
