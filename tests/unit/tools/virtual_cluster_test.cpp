// The cluster in virtual time against times worked out by hand.
#include "planning/virtual_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace baton {
namespace {

constexpr TimeNs kMs = kMillisecond;

/// A step of single tokens takes 2 ms and 1 ms a row; with prompts 1 ms and 0.1 ms a token.
/// Messages take none.
StepTimes plain_times() {
  StepTimes times;
  times.decode = TimeCurve({{1, 3e6}, {101, 103e6}});
  times.prompt = TimeCurve({{10, 2e6}, {1010, 102e6}});
  return times;
}

Settings settings_of_tests() {
  Settings settings;
  settings.prefix_cache = false;
  settings.token_budget = settings.prompt_chunk = 100;
  return settings;
}

const std::vector<VirtualWorker> kMixed = {{"mixed0", Role::mixed, 1000}};
const std::vector<VirtualWorker> kPair = {{"prefill0", Role::prefill, 1000},
                                          {"decode0", Role::decode, 1000}};

std::vector<VirtualRequest> burst(std::size_t count, std::uint32_t input, std::uint32_t output,
                                  TimeNs gap = 0) {
  std::vector<VirtualRequest> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    requests[i].arrival = static_cast<TimeNs>(i) * gap;
    requests[i].input = input;
    requests[i].output = output;
  }
  return requests;
}

std::vector<TimeNs> in_ms(std::vector<TimeNs> times) {
  for (TimeNs& time : times) time = (time + kMs / 2) / kMs;
  return times;
}

TEST(VirtualCluster, AnAnswerMayEndBeforeItsLimit) {
  std::vector<VirtualRequest> requests = burst(1, 250, 4);
  requests[0].limit = 50;
  const VirtualRun run = run_virtual_cluster(settings_of_tests(), kMixed, plain_times(), requests);
  EXPECT_EQ(run.replies[0].tokens.size(), 4U);
  EXPECT_EQ(run.replies[0].code, ErrorCode::ok);
  // What is admitted by its limit counts with it: two of 250 + 600 do not fit 1,600 tokens
  // together.
  Settings settings = settings_of_tests();
  settings.admission = Admission::future;
  requests = burst(2, 250, 40);
  for (const std::uint32_t limit : {500U, 600U}) {
    requests[0].limit = requests[1].limit = limit;
    const std::vector<VirtualWorker> small = {{"mixed0", Role::mixed, 100}};
    const VirtualRun both = run_virtual_cluster(settings, small, plain_times(), requests);
    const bool together = both.replies[1].tokens.front() < both.replies[0].tokens.back();
    EXPECT_EQ(together, limit == 500);
  }
}

TEST(VirtualCluster, OneRequestTakesItsSteps) {
  const VirtualRun run =
      run_virtual_cluster(settings_of_tests(), kMixed, plain_times(), burst(1, 250, 4));
  ASSERT_TRUE(run.complete);
  // Chunks of 100, 100 and 50 tokens, then three tokens more.
  EXPECT_EQ(in_ms(run.replies[0].tokens), (std::vector<TimeNs>{11 + 11 + 6, 31, 34, 37}));
  EXPECT_EQ(run.replies[0].code, ErrorCode::ok);
  EXPECT_EQ(run.workers[0].prompt_tokens, 250U);
  EXPECT_EQ(run.workers[0].decode_tokens, 3U);
  EXPECT_EQ(run.workers[0].steps, 6U);
  EXPECT_EQ(run.workers[0].busy, run.replies[0].end);
}

TEST(VirtualCluster, RowsOfOneStepShareIt) {
  const VirtualRun run =
      run_virtual_cluster(settings_of_tests(), kMixed, plain_times(), burst(2, 50, 3));
  // Both prompts fill one step; each token then takes 4 ms.
  EXPECT_EQ(in_ms(run.replies[0].tokens), (std::vector<TimeNs>{11, 15, 19}));
  EXPECT_EQ(run.replies[0].tokens, run.replies[1].tokens);
}

TEST(VirtualCluster, ContextsAndPairsCost) {
  StepTimes times;
  times.decode = TimeCurve({{1, 0}});
  times.prompt = TimeCurve({{1, 0}});
  times.decode_context = 1e4;  // 10 us a token
  times.prompt_pair = 1e3;
  times.sample = 1e6;
  times.host = 2 * kMs;
  const VirtualRun run = run_virtual_cluster(settings_of_tests(), kMixed, times, burst(1, 200, 2));
  // 100 * 101 / 2 pairs, then 100 * 100 more; one sample; two steps.
  const TimeNs first = (5050 + 100 * 100 + 5050) * 1000 + kMs + 2 * 2 * kMs;
  EXPECT_EQ(run.replies[0].tokens[0], first);
  EXPECT_EQ(run.replies[0].tokens[1], first + 201 * 10'000 + 2 * kMs);
}

TEST(VirtualCluster, SeveralWorkersComputeALongPromptTogether) {
  const std::vector<VirtualWorker> two = {{"mixed0", Role::mixed, 256},
                                          {"mixed1", Role::mixed, 256}};
  Settings settings = settings_of_tests();
  settings.elastic_prompt_tokens = 500;
  std::vector<VirtualRequest> requests = burst(1, 2000, 2);
  requests[0].arrival = kSecond;  // pools are read by then
  const auto first_token = [&](bool elastic) {
    settings.elastic = elastic;
    const VirtualRun run = run_virtual_cluster(settings, two, plain_times(), requests);
    EXPECT_TRUE(run.complete);
    EXPECT_EQ(run.counters.spreads, elastic ? 1U : 0U);
    EXPECT_EQ(run.workers[0].prompt_tokens + run.workers[1].prompt_tokens, 2000U);
    return run.replies[0].tokens[0] - requests[0].arrival;
  };
  const TimeNs alone = first_token(false);
  const TimeNs together = first_token(true);
  EXPECT_LT(together, alone * 65 / 100);  // a half, and what the last tokens take behind it
  EXPECT_GT(together, alone * 45 / 100);
}

TEST(VirtualCluster, MessagesAreWaitedFor) {
  StepTimes times = plain_times();
  times.message = 10 * kMs;
  times.request = 5 * kMs;
  const VirtualRun run = run_virtual_cluster(settings_of_tests(), kMixed, times, burst(1, 50, 5));
  // Request, submit, plan, step, result, two to the client.
  EXPECT_EQ(in_ms(run.replies[0].tokens)[0], 5 + 10 + 10 + 6 + 10 + 20);
  // The next step was planned with this one, the one behind it when the result of this one was in.
  const std::vector<TimeNs> tokens = in_ms(run.replies[0].tokens);
  EXPECT_EQ(tokens[1] - tokens[0], 3);
  EXPECT_EQ(tokens[2] - tokens[0], 10 + 10 + 3);
}

TEST(VirtualCluster, APairHandsOver) {
  StepTimes times = plain_times();
  times.pull = 5 * kMs;
  times.pull_block = kMs;
  const VirtualRun run = run_virtual_cluster(settings_of_tests(), kPair, times, burst(1, 96, 3));
  ASSERT_TRUE(run.complete);
  // One chunk; six blocks come over; then single tokens.
  const std::vector<TimeNs> tokens = in_ms(run.replies[0].tokens);
  EXPECT_EQ(tokens[1] - tokens[0], 5 + 6 + 3);
  EXPECT_EQ(tokens[2] - tokens[1], 3);
  EXPECT_EQ(run.workers[0].prompt_tokens, 96U);
  EXPECT_EQ(run.workers[0].decode_tokens, 0U);
  EXPECT_EQ(run.workers[1].decode_tokens, 2U);
  EXPECT_EQ(run.counters.handoffs, 1U);
}

TEST(VirtualCluster, EveryTokenComesThoughBlocksAreShort) {
  const std::vector<VirtualWorker> small = {{"mixed0", Role::mixed, 12}};
  const VirtualRun run =
      run_virtual_cluster(settings_of_tests(), small, plain_times(), burst(6, 40, 60, kMs));
  ASSERT_TRUE(run.complete);
  EXPECT_GT(run.counters.preemptions, 0U);
  for (const VirtualReply& reply : run.replies) {
    EXPECT_EQ(reply.tokens.size(), 60U);
    EXPECT_TRUE(std::is_sorted(reply.tokens.begin(), reply.tokens.end()));
  }
}

TEST(VirtualCluster, IdleTimeIsNoSilence) {
  const VirtualRun run = run_virtual_cluster(settings_of_tests(), kPair, plain_times(),
                                             burst(3, 40, 5, 100 * kSecond));
  ASSERT_TRUE(run.complete);
  EXPECT_EQ(run.counters.terms_ended, 0U);
  const auto first = run.replies[0].tokens[0];
  EXPECT_EQ(run.replies[2].tokens[0], first + 200 * kSecond);
}

TEST(VirtualCluster, AStaticBatchIsCollected) {
  Settings settings = settings_of_tests();
  settings.batching = Batching::static_batch;
  settings.static_batch_size = 4;
  settings.static_interval = kSecond;
  const VirtualRun run = run_virtual_cluster(settings, kMixed, plain_times(), burst(2, 40, 5, kMs));
  ASSERT_TRUE(run.complete);
  EXPECT_GE(run.replies[0].tokens[0], kSecond);
  EXPECT_LE(run.replies[0].tokens[0], kSecond + 200 * kMs);
}

TEST(VirtualCluster, RunsAreAlikeAndMayBeGivenUp) {
  const auto requests = burst(40, 120, 30, 20 * kMs);
  const VirtualRun a = run_virtual_cluster(settings_of_tests(), kPair, plain_times(), requests);
  const VirtualRun b = run_virtual_cluster(settings_of_tests(), kPair, plain_times(), requests);
  for (std::size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(a.replies[i].tokens, b.replies[i].tokens);
  VirtualOptions options;
  options.patience = 100 * kMs;
  const VirtualRun cut =
      run_virtual_cluster(settings_of_tests(), kPair, plain_times(), requests, options);
  EXPECT_FALSE(cut.complete);
  EXPECT_EQ(cut.replies.back().end, 0);
}

TEST(VirtualCluster, DeadlinesCount) {
  auto requests = burst(1, 50, 1000);
  requests[0].timeout = kSecond;
  const VirtualRun run = run_virtual_cluster(settings_of_tests(), kMixed, plain_times(), requests);
  ASSERT_TRUE(run.complete);
  EXPECT_EQ(run.replies[0].code, ErrorCode::deadline_exceeded);
  EXPECT_LT(run.replies[0].tokens.size(), 400U);
}

TEST(StepTimes, CurvesGoThroughTheirPoints) {
  const TimeCurve curve({{2, 10}, {4, 20}, {8, 100}});
  EXPECT_EQ(curve.at(1), 10);
  EXPECT_EQ(curve.at(2), 10);
  EXPECT_EQ(curve.at(3), 15);
  EXPECT_EQ(curve.at(8), 100);
  EXPECT_EQ(curve.at(10), 140);
}

TEST(StepTimes, TextsRoundTripAndErrorsNameTheKey) {
  StepTimes times = plain_times();
  times.decode_context = 12.5;
  times.prompt_pair = 0.25;
  times.sample = 4000;
  times.host = 20'000;
  times.pull = 50'000;
  times.pull_block = 3000;
  times.message = 60'000;
  times.request = 400'000;
  MeasuredDevice device;
  device.model = "demo";
  device.pool_blocks = 77;
  device.times = times;
  const std::string text = device_json(device);
  const auto read = parse_device(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(device_json(read.value()), text);
  EXPECT_EQ(read.value().pool_blocks, 77U);
  EXPECT_EQ(read.value().times.of({.prompt_tokens = 10}), times.of({.prompt_tokens = 10}));
  const auto error = [](const std::string& json) { return parse_device(json).status().message(); };
  EXPECT_NE(error("[]").find("object"), std::string::npos);
  EXPECT_NE(error("{}").find("'decode_us'"), std::string::npos);
  EXPECT_NE(error(R"({"decode_us":[[2,1],[1,1]]})").find("[1,1]"), std::string::npos);
  EXPECT_NE(
      error(R"({"decode_us":[[1,1]],"prompt_us":[[1,1]]})").find("'decode_context_ns' is missing"),
      std::string::npos);
  EXPECT_NE(
      error(R"({"decode_us":[[1,1]],"prompt_us":[[1,1]],"decode_context_ns":-1})").find("0 to"),
      std::string::npos);
}

}  // namespace
}  // namespace baton
