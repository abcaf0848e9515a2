// The parts of baton-plan: set-ups, laws of lengths, what a run is worth, and a search whose
// outcome is known.
#include "planning/plan_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "configs/config.h"

namespace baton {
namespace {

constexpr TimeNs kMs = kMillisecond;

std::vector<std::string> texts(const std::vector<Split>& splits) {
  std::vector<std::string> all;
  for (const Split& split : splits) all.push_back(split_text(split));
  return all;
}

TEST(Splits, EachDiffersInWhatItDoes) {
  EXPECT_EQ(texts(all_splits(1)), (std::vector<std::string>{"1m"}));
  EXPECT_EQ(texts(all_splits(2)), (std::vector<std::string>{"2m", "1p1m", "1p1d"}));
  EXPECT_EQ(all_splits(8).size(), 1U + 8 + 7 + 6 + 5 + 4 + 3 + 2);
  for (const Split& split : all_splits(5)) EXPECT_EQ(split.workers(), 5U);
}

TEST(Splits, TextsRoundTrip) {
  for (const Split& split : all_splits(4)) EXPECT_EQ(parse_split(split_text(split)).value(), split);
  for (const char* bad : {"", "p", "0p1d", "1x", "1p1p", "2", "1p-1d", "65m", "1p 1d"}) {
    EXPECT_FALSE(parse_split(bad).ok()) << bad;
  }
  const auto workers = workers_of({.prefill = 1, .decode = 2, .mixed = 0}, 9);
  ASSERT_EQ(workers.size(), 3U);
  EXPECT_EQ(workers[2].name, "decode1");
  EXPECT_EQ(workers[2].role, Role::decode);
  EXPECT_EQ(workers[2].blocks, 9U);
}

TEST(Lengths, FollowTheirLaw) {
  const auto mean = [](const char* law) {
    const auto lengths = LengthLaw::parse(law);
    std::uint64_t state = 7;
    double sum = 0;
    for (int i = 0; i < 20000; ++i) sum += lengths.value().draw(state);
    return sum / 20000;
  };
  EXPECT_EQ(mean("512"), 512);
  EXPECT_NEAR(mean("uniform:100:200"), 150, 2);
  EXPECT_NEAR(mean("exponential:300"), 300, 8);
  EXPECT_NEAR(mean("lognormal:200:0.5"), 200 * std::exp(0.125), 4);
  for (const char* bad : {"", "0", "1.5", "-3", "uniform:5", "uniform:9:5", "exponential:0",
                          "normal:1:2", "lognormal:5:9", "2000000", "uniform:1:2:3"}) {
    EXPECT_FALSE(LengthLaw::parse(bad).ok()) << bad;
  }
}

TEST(Traces, AreDrawnAndWrittenAsTheyAreRead) {
  const auto input = LengthLaw::parse("uniform:10:20").value();
  const auto output = LengthLaw::parse("5").value();
  const auto trace = draw_trace(2000, 50, input, output, 3);
  ASSERT_EQ(trace.size(), 2000U);
  EXPECT_EQ(trace[0].at_ms, 0);
  EXPECT_NEAR(trace.back().at_ms, 2000 / 50.0 * 1000, 3000);
  const auto read = read_trace(trace_text(trace));
  ASSERT_TRUE(read.ok()) << read.status().message();
  for (std::size_t i = 0; i < trace.size(); ++i) {
    EXPECT_EQ(read.value()[i].at_ms, trace[i].at_ms);
    EXPECT_EQ(read.value()[i].input_tokens, trace[i].input_tokens);
    EXPECT_EQ(read.value()[i].output_tokens, 5U);
  }
  EXPECT_NE(draw_trace(5, 50, input, output, 4)[4].at_ms, trace[4].at_ms);
}

TEST(Traces, EqualIdsAreEqualPrompts) {
  std::vector<TraceRequest> trace(2);
  trace[0].input_tokens = trace[1].input_tokens = 600;
  trace[0].output_tokens = trace[1].output_tokens = 1;
  trace[0].hash_ids = {4, 5};
  trace[1].hash_ids = {4, 6};
  const auto requests = virtual_requests(trace);
  ASSERT_EQ(requests[0].prompt.size(), 600U);
  EXPECT_TRUE(std::equal(requests[0].prompt.begin(), requests[0].prompt.begin() + 512,
                         requests[1].prompt.begin()));
  EXPECT_NE(requests[0].prompt.back(), requests[1].prompt.back());
}

VirtualReply reply(std::vector<TimeNs> tokens) {
  VirtualReply r;
  r.end = tokens.empty() ? 0 : tokens.back();
  r.tokens = std::move(tokens);
  return r;
}

TEST(Worth, CountsWhoMeetsBothBounds) {
  std::vector<VirtualRequest> requests(4);
  for (std::size_t i = 0; i < 4; ++i) requests[i].arrival = static_cast<TimeNs>(i) * kSecond;
  VirtualRun run;
  run.replies = {reply({kSecond / 2, kSecond / 2 + 20 * kMs}),               // good
                 reply({kSecond + 1500 * kMs, kSecond + 1501 * kMs}),        // late
                 reply({2 * kSecond + 100 * kMs, 2 * kSecond + 200 * kMs}),  // a long gap
                 VirtualReply{}};                                            // never ended
  const Worth worth = worth_of(requests, run, {.ttft = kSecond, .gap = 30 * kMs});
  EXPECT_EQ(worth.share, 0.25);
  EXPECT_NEAR(worth.goodput, 1 / 3.0, 1e-9);
  EXPECT_EQ(worth.failed, 1U);
  EXPECT_NEAR(worth.ttft_p50 * 1e-6, 500, 1e-6);
  EXPECT_NEAR(worth.gap_p99 * 1e-6, 100 - 0.02 * 80, 0.1);
  EXPECT_EQ(worth_of(requests, run, {.ttft = 2 * kSecond, .gap = 100 * kMs}).share, 0.75);
  Worth other = worth;
  other.ttft_p99 /= 2;
  EXPECT_TRUE(better(other, worth));
  other.goodput /= 2;
  EXPECT_FALSE(better(other, worth));
}

TEST(Configuration, IsOneThatTheServersRead) {
  const ClusterSetup setup{{.prefill = 2, .decode = 1, .mixed = 1}, 384};
  const auto config = parse_config(setup_yaml(setup, "/model", "cuda", 96), "best.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  ASSERT_EQ(config.value().workers.size(), 4U);
  EXPECT_EQ(config.value().workers[1].name, "prefill1");
  EXPECT_EQ(config.value().workers[3].role, Role::mixed);
  EXPECT_EQ(config.value().workers[0].device, "cuda");
  EXPECT_EQ(config.value().scheduler.prompt_chunk, 384U);
  EXPECT_EQ(config.value().scheduler.token_budget.mixed, 384U);
  EXPECT_EQ(config.value().scheduler.max_running, 96U);
  EXPECT_EQ(config.value().scheduler.roles, Roles::fixed);
  const ClusterSetup follows{{.prefill = 1, .decode = 2}, 384, true};
  EXPECT_EQ(setup_text(follows), "1p2d auto");
  const ClusterSetup cut{{.prefill = 1, .decode = 1}, 384, false, 2};
  EXPECT_EQ(setup_text(cut), "1p1d of 2");
  const auto on_cpus = parse_config(setup_yaml(cut, "/model", "", 96), "best.yaml");
  ASSERT_TRUE(on_cpus.ok()) << on_cpus.status().message();
  EXPECT_EQ(on_cpus.value().workers[0].ranks, 2U);
  const auto other = parse_config(setup_yaml(follows, "/model", "cuda", 96), "best.yaml");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other.value().scheduler.roles, Roles::automatic);
}

/// Steps with prompts cost a hundred times those of single tokens: whoever decodes must do nothing
/// else.
TEST(Search, LongPromptsWantWorkersOfTheirOwn) {
  StepTimes times;
  times.decode = TimeCurve({{1, 5e6}, {64, 6e6}});
  times.prompt = TimeCurve({{1, 20e6}, {1024, 500e6}});
  const auto trace =
      draw_trace(60, 1, LengthLaw::parse("800").value(), LengthLaw::parse("50").value(), 1);
  const auto requests = virtual_requests(trace);
  const Objective objective{.ttft = 5 * kSecond, .gap = 30 * kMs};
  const auto worth = [&](const char* split) {
    const ClusterSetup setup{parse_split(split).value(), 512};
    const VirtualRun run = run_virtual_cluster(settings_of(Settings(), setup),
                                               workers_of(setup.split, 4000), times, requests);
    return worth_of(requests, run, objective);
  };
  EXPECT_GT(worth("1p1d").share, 0.95);
  EXPECT_LT(worth("2m").share, 0.8);
  EXPECT_TRUE(better(worth("1p1d"), worth("2m")));
}

}  // namespace
}  // namespace baton
