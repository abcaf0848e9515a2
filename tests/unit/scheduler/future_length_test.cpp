// Admission by what the running requests can still come to.
#include "scheduler/plan/future_length.h"

#include <algorithm>
#include <random>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

/// The example of LightLLM's documentation: five requests against a budget of 100 tokens.
TEST(FutureLength, ThePublishedExample) {
  const std::vector<Growth> example = {{5, 4}, {4, 3}, {5, 3}, {3, 2}, {4, 2}};
  std::vector<Growth> batch = example;
  EXPECT_EQ(peak_blocks(batch, 1), 31U);  // of 9, 15, 23, 25, 31
  EXPECT_LE(peak_blocks(batch, 1), 100U);
  const std::uint64_t steps[] = {9, 15, 23, 25, 31};
  for (std::size_t i = 1; i <= example.size(); ++i) {
    std::vector<Growth> first(example.begin(), example.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(peak_blocks(first, 1), steps[i - 1]);
  }
  std::vector<Growth> none;
  EXPECT_EQ(peak_blocks(none, 1), 0U);
}

/// Plays the sequences step by step and counts what they hold.
std::uint64_t played_peak(std::vector<Growth> sequences, std::uint32_t per_block) {
  std::uint64_t peak = 0;
  while (!sequences.empty()) {
    std::uint64_t blocks = 0;
    for (const Growth& s : sequences) blocks += (s.used + per_block - 1) / per_block;
    peak = std::max(peak, blocks);
    std::erase_if(sequences, [](const Growth& s) { return s.left == 0; });
    for (Growth& s : sequences) ++s.used, --s.left;
  }
  return peak;
}

TEST(FutureLength, NeverLessThanWhatIsReallyNeededAndExactForBlocksOfOne) {
  std::minstd_rand random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Growth> sequences(1 + random() % 12);
    for (Growth& s : sequences) {
      s.used = static_cast<std::uint32_t>(1 + random() % 40);
      s.left = static_cast<std::uint32_t>(random() % 40);
    }
    const auto n = sequences.size();
    EXPECT_EQ(peak_blocks(sequences, 1), played_peak(sequences, 1));
    for (const std::uint32_t per_block : {4U, 16U}) {
      const std::uint64_t real = played_peak(sequences, per_block);
      EXPECT_GE(peak_blocks(sequences, per_block), real);
      EXPECT_LE(peak_blocks(sequences, per_block), real + n);
    }
  }
}

/// Twelve requests, two new ones a step, chunks of prompts between them, in a pool that does not
/// hold all.
std::uint64_t preemptions_under(Admission admission, Role role, std::uint32_t depth) {
  Settings settings;
  settings.admission = admission;
  settings.steps_in_flight = depth;
  settings.prompt_chunk = 5;
  settings.token_budget = 16;
  Cluster c(settings);
  if (role == Role::decode) c.ready_worker("prefill0", Role::prefill);
  c.ready_worker(role == Role::decode ? "decode0" : "mixed0", role, /*blocks=*/20);
  for (std::uint64_t i = 1; i <= 12; ++i) {
    c.submit(i, 3 + static_cast<std::uint32_t>(i * 5 % 13),
             4 + static_cast<std::uint32_t>(i * 7 % 23));
    if (i % 2 == 0) c.run(1);
  }
  c.run();
  for (std::uint64_t i = 1; i <= 12; ++i) EXPECT_EQ(c.tokens_of(i), 4 + i * 7 % 23);
  return c.state.counters.preemptions;
}

TEST(FutureLength, NobodyIsEverPreempted) {
  for (const Role role : {Role::mixed, Role::decode}) {
    for (const std::uint32_t depth : {1U, 2U}) {
      EXPECT_EQ(preemptions_under(Admission::future, role, depth), 0U) << to_string(role);
      EXPECT_GT(preemptions_under(Admission::watermark, role, depth), 0U) << to_string(role);
    }
  }
}

TEST(FutureLength, WhatNeverFitsBesideOthersRunsAlone) {
  Settings settings;
  settings.admission = Admission::future;
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/6);
  c.submit(1, 4, 1000);  // cut off where the pool ends
  c.submit(2, 4, 1000);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 20U);
  EXPECT_EQ(c.tokens_of(2), 20U);
  EXPECT_EQ(c.state.counters.preemptions, 0U);
}

TEST(FutureLength, BeamsCountWithTheMostThatTheyCanNeed) {
  Settings settings;
  settings.admission = Admission::future;
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/12);
  Submit search = c.request(1, 4, 8);
  search.sampling.num_beams = 4;  // 1 shared block and 4 times 2
  c.from_frontend(c.frontend, search);
  c.submit(2, 8,
           5);  // 12 tokens are computed, one more is told: it counts with four blocks of four
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  c.submit(3, 4, 2);
  c.from_frontend(c.frontend, Cancel{{1, 2}});
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::prefill);
}

TEST(Watermark, AShareOfThePoolStaysFree) {
  Settings settings;
  settings.watermark = 0.25;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/12);
  for (std::uint64_t i = 1; i <= 4; ++i) c.submit(i, 8, 2);  // three blocks each
  c.turn();
  EXPECT_EQ(c.phase(3), Phase::prefill);
  EXPECT_EQ(c.phase(4), Phase::waiting);
  EXPECT_EQ(c.pool("mixed0").free, 3U);
}

}  // namespace
}  // namespace baton::test
